# SPDX-License-Identifier: Apache-2.0
"""These tests need no TensorFlow, and prove that what they test does not load it either."""

import os
import sys

os.environ["NPU_KERAS_LAZY"] = "1"

import pytest
from hypothesis import settings

settings.register_profile("pure", max_examples=50)
settings.load_profile("pure")


@pytest.fixture(autouse=True, scope="session")
def no_framework():
    yield
    assert not {"tensorflow", "keras", "tf_keras"} & sys.modules.keys()
