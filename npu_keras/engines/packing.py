# SPDX-License-Identifier: Apache-2.0
"""Tensors packed into one vector, for transports whose cost is in the number of calls."""

from collections.abc import Sequence

import tensorflow as tf


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Joins tensors of one dtype into a vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def unpack(flat: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a vector into tensors of the shapes of `like`."""
    parts = tf.split(flat, [tf.size(tensor) for tensor in like])
    results = [tf.reshape(p, tf.shape(t)) for p, t in zip(parts, like, strict=True)]
    if not tf.executing_eagerly():
        for result, tensor in zip(results, like, strict=True):
            result.set_shape(tensor.shape)
    return results
