# SPDX-License-Identifier: Apache-2.0
"""Every test starts from the float32 policy, the same seeds and no status register."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.insert(0, str(Path(__file__).parent))  # for `scaled`; pytest imports by file

import keras
import pytest

from npu_keras.overflow import install_float_status


@pytest.fixture(autouse=True)
def clean_slate():
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")
    install_float_status(None)
