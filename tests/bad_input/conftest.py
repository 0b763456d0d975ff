# SPDX-License-Identifier: Apache-2.0
"""All rows run in one process, on whatever the rows before have left."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.insert(0, str(Path(__file__).parent))  # for `rows`; pytest imports by file

import pytest

from npu_keras import NPURunConfig
from npu_keras.buckets import clear_split_strategy
from npu_keras.products import set_product


@pytest.fixture(autouse=True)
def clean_slate():
    yield
    NPURunConfig.clear()
    clear_split_strategy()
    set_product(None)
