# SPDX-License-Identifier: Apache-2.0
"""Counts, inside the training step, how large the gradients of each variable are.

Every n-th attempted step looks at the rank's own gradients before they are aggregated. The other
steps only compare a number.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from npu_keras._upstream import in_xla
from npu_keras.channels import GradientList
from npu_keras.gradient_range import GradientRange
from npu_keras.journal import read
from npu_keras.state import StepState, native
from npu_keras.unscaling import unscaled

LOWEST, HIGHEST = -96, 31
"""The exponents that are counted one by one, as powers of two of the unscaled gradient."""

BINS = HIGHEST - LOWEST + 1
ZERO, NOT_FINITE = BINS, BINS + 1


class GradientObserver:
    """Histograms of the exponents of unscaled gradients, kept in variables.

    Give it to `optimizer.observe` before the step is traced.

    Args:
        names: the paths of the trained variables.
        variables: these variables, in the optimizer's order.
        every: looks at each attempted step whose number, counted from 0, is a multiple of this.
    """

    def __init__(self, names: Sequence[str], variables: Sequence[Any], every: int) -> None:
        self.names = tuple(names)
        self._every = every
        with tf.init_scope(), _scope_of(variables):
            # Each replica adds up its own, and reading gives the sum.
            self._counts = tf.Variable(
                tf.zeros((len(self.names), BINS + 2), tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name="gradient_exponents",
            )

    def look(
        self,
        own: GradientList,
        state: StepState,
        takes_raw: Callable[[int], bool],
    ) -> None:
        """Counts the gradients of this step, if it is its turn (in the graph).

        Args:
            own: this rank's or replica's gradients of the scaled loss.
            state: the optimizer's variables, before the step.
            takes_raw: whether the gradient of a variable never had the scale.
        """

        def count() -> tf.Tensor:
            gradients = unscaled(own, tf.convert_to_tensor(state.loss_scale), takes_raw)
            rows = [_histogram(gradient) for gradient in gradients.gradients]
            index = tf.constant(list(gradients.positions), tf.int64)[:, None]
            shape = tf.constant([len(self.names), BINS + 2], tf.int64)
            self._counts.assign_add(tf.scatter_nd(index, tf.stack(rows), shape))
            return tf.constant(True)

        turn = tf.convert_to_tensor(state.attempted_steps) % self._every == 0
        tf.cond(turn, count, lambda: tf.constant(False))

    def read(self, loss_scale: float) -> GradientRange:
        """Returns what has been counted so far.

        Args:
            loss_scale: the present loss scale.
        """
        counts = read(self._counts)
        exponents = np.arange(LOWEST, HIGHEST + 1)
        zeros, not_finite = counts[:, ZERO], counts[:, NOT_FINITE]
        return GradientRange(self.names, exponents, counts[:, :BINS], zeros, not_finite, loss_scale)


def _histogram(gradient: Any) -> tf.Tensor:
    """Counts the elements of a gradient by exponent; int64 vector of `BINS + 2`."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if values.dtype.is_complex:
        values = tf.stack([tf.math.real(values), tf.math.imag(values)])
    values = tf.reshape(values, [-1])
    finite = tf.math.is_finite(values)
    if values.dtype == tf.float64:
        values = tf.clip_by_value(values, -tf.float32.max, tf.float32.max)
    magnitude = tf.abs(tf.cast(values, tf.float32))
    # The exponent's bits, since a logarithm rounds just below a power of two.
    exponent = tf.bitwise.right_shift(tf.bitcast(magnitude, tf.int32), 23) - 127
    bins = tf.clip_by_value(exponent, LOWEST, HIGHEST) - LOWEST
    bins = tf.where(values == 0, ZERO, bins)
    bins = tf.where(finite, bins, NOT_FINITE)
    if in_xla():  # which does not compile `bincount` everywhere (TensorFlow 2.21.0)
        return tf.math.unsorted_segment_sum(tf.ones_like(bins, tf.int64), bins, BINS + 2)
    return tf.math.bincount(bins, minlength=BINS + 2, maxlength=BINS + 2, dtype=tf.int64)


def _scope_of(variables: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    strategy = getattr(native(variables[0]), "distribute_strategy", None) if variables else None
    return contextlib.nullcontext() if strategy is None else strategy.scope()
