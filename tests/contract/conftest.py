# SPDX-License-Identifier: Apache-2.0
"""Every test runs for every flavour, from the float32 policy and without a status register."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.insert(0, str(Path(__file__).parent))  # for `flavours`; pytest imports by file
sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))  # for `launch`

import pytest
import tensorflow as tf
from flavours import FLAVOURS

from npu_keras.overflow import install_float_status

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(params=FLAVOURS, ids=lambda flavour: flavour.name)
def flavour(request):
    return request.param


@pytest.fixture(autouse=True)
def clean_slate():
    yield
    install_float_status(None)
