# SPDX-License-Identifier: Apache-2.0
"""Every test starts from the float32 policy and the same seeds; two logical CPUs stand ready."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

sys.path.insert(0, str(Path(__file__).parent))  # for `hosts`; pytest imports by file

import pytest
import tensorflow as tf
import tf_keras

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(autouse=True)
def clean_slate():
    tf_keras.utils.set_random_seed(0)
    yield
    tf_keras.mixed_precision.set_global_policy("float32")
