# SPDX-License-Identifier: Apache-2.0
"""Did a step overflow, and where? The check of gradients in INF/NaN and in saturation mode.

INF/NaN mode follows IEEE 754: an overflow leaves an infinity or a NaN. In saturation mode the
hardware clamps results to the largest finite number and turns NaN into 0, so an overflow shows
as a value at the limit of the compute dtype, or only in the device's sticky status register.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from npu_keras.journal import Blame

INF_NAN, SATURATION = "inf_nan", "saturation"
OVERFLOW_MODES = (INF_NAN, SATURATION)

Gradient = tf.Tensor | tf.IndexedSlices


class FloatStatus(Protocol):
    """A device's sticky overflow flag: set by any operation that saturates, kept until cleared."""

    def get(self) -> tf.Tensor:
        """Returns a bool scalar: has anything overflowed since the last `clear`?"""

    def clear(self) -> None:
        """Resets the flag."""


_installed_status: list[FloatStatus] = []


def install_float_status(status: FloatStatus | None) -> None:
    """Gives saturation mode a status register to read instead of the values at the limit.

    The register is read once per step after the gradients exist, then cleared. Register it before
    the training step is traced.

    Args:
        status: the register, or None to go back to looking at values.
    """
    _installed_status[:] = [] if status is None else [status]


def validate_mode(overflow_mode: str) -> str:
    """Returns the mode, or raises ValueError naming the modes there are."""
    if overflow_mode not in OVERFLOW_MODES:
        raise ValueError(
            f"`overflow_mode` must be one of {OVERFLOW_MODES}. "
            f"Received: overflow_mode={overflow_mode!r}"
        )
    return overflow_mode


class OverflowCheck(NamedTuple):
    """How one optimizer decides whether a step overflowed.

    Attributes:
        mode: `"inf_nan"` or `"saturation"`.
        compute_dtype: the dtype the layers compute in; its largest number is the limit in
            saturation mode (65504 for float16). Ignored in INF/NaN mode.
    """

    mode: str
    compute_dtype: str

    def finite(self, gradients: Sequence[Gradient]) -> tf.Tensor:
        """Returns a bool scalar: True when no gradient overflowed.

        Args:
            gradients: tensors or IndexedSlices of any shape and real dtype; no None.
        """
        if self.mode == INF_NAN:
            return _screened(gradients)
        if _installed_status:
            return self._status_clear(gradients)
        return tf.logical_not(tf.reduce_any(self.bad_gradients(gradients)))

    def bad_gradients(self, gradients: Sequence[Gradient]) -> tf.Tensor:
        """Returns a bool vector, one entry per gradient: does it hold an overflow?"""
        counts = [self._count_bad(gradient) for gradient in gradients]
        return tf.stack([infs + nans > 0 for infs, nans in counts])

    def blame(self, gradients: Sequence[Gradient]) -> tuple[Blame, tf.Tensor]:
        """Counts what overflowed, exactly; meant for the branch of a skipped step.

        Args:
            gradients: as in `finite`; positions in the result are positions in this list.

        Returns:
            The blame, and an int64 vector with a 1 for each gradient that overflowed.
        """
        counts = [self._count_bad(gradient) for gradient in gradients]
        infs = tf.stack([pair[0] for pair in counts])
        nans = tf.stack([pair[1] for pair in counts])
        bad = infs + nans > 0
        flags = tf.cast(bad, tf.int64)
        nobody, zero = tf.constant(-1, tf.int64), tf.zeros((), tf.int64)
        first = tf.where(tf.reduce_any(bad), tf.argmax(flags), nobody)
        totals = tf.reduce_sum(flags), tf.reduce_sum(infs), tf.reduce_sum(nans)
        return Blame(totals[0], first, totals[1], totals[2], zero, nobody), flags

    def _status_clear(self, gradients: Sequence[Gradient]) -> tf.Tensor:
        # The register covers every operation since the last clear, so it is read only once the
        # gradients exist, and cleared before anything of the next step can run.
        with tf.control_dependencies([_values(gradient) for gradient in gradients]):
            overflowed = tf.identity(_installed_status[0].get())
        with tf.control_dependencies([overflowed]):
            _installed_status[0].clear()
        return tf.logical_and(tf.logical_not(overflowed), _screened(gradients))

    def _count_bad(self, gradient: Gradient) -> tuple[tf.Tensor, tf.Tensor]:
        values = _components(_summed_duplicates(gradient))
        if not values.dtype.is_floating:
            return tf.zeros((), tf.int64), tf.zeros((), tf.int64)
        nans = tf.math.is_nan(values)
        bad = tf.abs(values) >= self._limit(values.dtype)
        return tf.math.count_nonzero(bad), tf.math.count_nonzero(nans)

    def _limit(self, dtype: tf.DType) -> tf.Tensor:
        if self.mode == INF_NAN:
            return tf.constant(float("inf"), dtype)
        compute = tf.as_dtype(self.compute_dtype)
        limit = min(compute.max, dtype.max) if compute.is_floating else dtype.max
        return tf.constant(limit, dtype)


def _screened(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The cheap test first: a sum that holds an inf or a NaN is never finite.

    A finite total proves every gradient finite in one pass that allocates nothing. A total that is
    not finite may still be a sum of finite numbers, so only then are the elements looked at.
    """
    sums = [_screening_sum(gradient) for gradient in gradients]
    if not sums:
        return tf.constant(True)
    surely_finite = tf.math.is_finite(tf.add_n(sums))
    return tf.cond(surely_finite, lambda: tf.constant(True), lambda: _all_finite(gradients))


def _screening_sum(gradient: Gradient) -> tf.Tensor:
    values = _components(_values(gradient))
    if not values.dtype.is_floating:
        return tf.zeros((), tf.float32)
    if isinstance(gradient, tf.IndexedSlices):
        # Rows of one index are added up later; with magnitudes no cancellation can hide that
        # one such sum overflows.
        values = tf.abs(values)
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    return tf.cast(tf.reduce_sum(values), tf.float32)


def _all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    check = OverflowCheck(INF_NAN, "float32")
    return tf.logical_not(tf.reduce_any(check.bad_gradients(gradients)))


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _components(values: tf.Tensor) -> tf.Tensor:
    """Complex numbers as their two real parts; others as they are."""
    if not values.dtype.is_complex:
        return values
    return tf.stack([tf.math.real(values), tf.math.imag(values)])


def _summed_duplicates(gradient: Gradient) -> tf.Tensor:
    """The rows an IndexedSlices will add to its variable: duplicates summed, never densified."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    values = gradient.values
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)  # as `unscale` does before they are added up
    order = tf.argsort(gradient.indices)
    ordered = tf.gather(gradient.indices, order)
    starts = tf.concat([[0], tf.cast(ordered[1:] != ordered[:-1], tf.int32)], axis=0)
    segments = tf.cumsum(starts[: tf.shape(order)[0]])
    return tf.math.unsorted_segment_sum(
        tf.gather(values, order), segments, num_segments=tf.shape(values)[0]
    )
