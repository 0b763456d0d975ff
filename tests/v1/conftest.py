# SPDX-License-Identifier: Apache-2.0
"""The tests of the `tf.compat.v1` flavour, in graphs, eagerly, and without the behaviour of v2."""

import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# For `loops`, `launch` and `reports`; pytest imports by file.
sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
sys.path.insert(0, str(Path(__file__).parent))

import keras
import pytest
import tensorflow as tf
from loops import WITHOUT_V2

from npu_keras.overflow import install_float_status

if WITHOUT_V2:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tf.compat.v1.disable_v2_behavior()


@pytest.fixture(autouse=True)
def clean_slate():
    yield
    keras.config.set_dtype_policy("float32")
    install_float_status(None)


@pytest.fixture
def graph():
    """A graph to build in; a test opens the session itself."""
    with tf.Graph().as_default() as graph:
        yield graph
