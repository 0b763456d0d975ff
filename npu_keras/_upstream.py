# SPDX-License-Identifier: Apache-2.0
"""Every private name of TensorFlow and Keras that is used, in one place.

Each entry says what it is for and the upstream version it was checked on; the tests of this
module fail, by name, when one is gone.
"""

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def in_xla() -> bool:
    """Whether the graph being traced will be compiled by XLA (TensorFlow 2.21.0)."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
