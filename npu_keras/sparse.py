# SPDX-License-Identifier: Apache-2.0
"""IndexedSlices: gradients of a few rows of a large variable."""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
"""A gradient as a tape gives it."""


def deduplicated(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the rows that belong to one index, so that each index is sent and applied once.

    Args:
        slices: values of shape `(rows, ...)`, indices of shape `(rows,)`, in any order.

    Returns:
        IndexedSlices with as many rows as there are different indices. Never densified.
    """
    indices, segments = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, segments, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def added(first: Gradient, second: Gradient) -> Gradient:
    """Returns the sum of two gradients of one variable, as rows where both are rows."""
    if not (isinstance(first, tf.IndexedSlices) and isinstance(second, tf.IndexedSlices)):
        return tf.add_n([first, second])
    values = tf.concat([first.values, second.values], axis=0)
    indices = [tf.cast(slices.indices, tf.int64) for slices in (first, second)]
    return tf.IndexedSlices(values, tf.concat(indices, axis=0), first.dense_shape)


def map_values(function: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """Applies a function to a tensor, or to the values of IndexedSlices."""
    if not isinstance(gradient, tf.IndexedSlices):
        return function(gradient)
    values = function(gradient.values)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
