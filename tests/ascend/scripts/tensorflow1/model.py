# SPDX-License-Identifier: Apache-2.0
"""A module of the script, with names of TensorFlow 1 as well."""

import tensorflow as tf
from tensorflow import to_float


def build_loss(x):
    width = x.get_shape()[1].value
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        w = tf.get_variable("w", [width, 1], initializer=tf.ones_initializer())
    return tf.reduce_sum(to_float(tf.matmul(x, w)))
