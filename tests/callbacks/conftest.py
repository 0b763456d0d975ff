# SPDX-License-Identifier: Apache-2.0
"""Every test starts from the float32 policy and the same seeds; there are two devices."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(autouse=True)
def clean_slate():
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")
