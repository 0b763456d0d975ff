# SPDX-License-Identifier: Apache-2.0
"""Did a step overflow, and where? The check of gradients in INF/NaN and in saturation mode.

INF/NaN mode follows IEEE 754: an overflow leaves an infinity or a NaN. In saturation mode the
hardware clamps results to the largest finite number and turns NaN into 0, so an overflow shows
as a value at the limit of the compute dtype, or only in the device's sticky status register.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from npu_keras._upstream import keeps_order
from npu_keras.bundles import Bundle, bundled
from npu_keras.ordering import in_order
from npu_keras.products import INF_NAN, SATURATION, resolve_mode
from npu_keras.sparse import Gradient


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
    """Returns the mode, the one in force for `"auto"`; see `npu_keras.products.resolve_mode`."""
    return resolve_mode(overflow_mode)


class OverflowCheck(NamedTuple):
    """How one optimizer recognises an overflow.

    Attributes:
        mode: `"inf_nan"` or `"saturation"`.
        compute_dtype: the dtype the layers compute in; its largest number is the limit in
            saturation mode (65504 for float16). Ignored in INF/NaN mode.
    """

    mode: str
    compute_dtype: str

    def inspect(self, gradients: Sequence[Gradient], divided_by: int = 1) -> "Finding":
        """Looks for overflows: one cheap pass, and an exact one only if that raises suspicion.

        Args:
            gradients: tensors or IndexedSlices of any shape and dtype; no None.
            divided_by: what they were divided by since they were computed, which has brought
                saturated values below the limit.

        Returns:
            A finding with one entry per gradient.
        """
        flag = self._read_status(gradients)
        by_value = self.mode == SATURATION and not _installed_status
        finding = self._look(gradients, divided_by if by_value else None)
        return finding._replace(overflowed=tf.logical_or(flag, finding.overflowed))

    def inspect_aggregate(self, gradients: Sequence[Gradient]) -> "Finding":
        """Looks for overflows by values alone, so that all find the same in the same gradients.

        A status register also knows of operations of its own device that the others did not do.

        Args:
            gradients: the aggregate, as `inspect` takes it.
        """
        return self._look(gradients, 1 if self.mode == SATURATION else None)

    def _look(self, gradients: Sequence[Gradient], divided_by: int | None) -> "Finding":
        """Counts inf and NaN, and saturated values where it is known what they were divided by."""
        bundles = bundled(gradients)
        exact = functools.partial(self._count, bundles, divided_by)
        none = functools.partial(tf.zeros, (2, len(gradients)), tf.int64)
        suspicious = self._is_suspicious([bundle.gradient for bundle in bundles], divided_by)
        infs, nans = tf.unstack(tf.cond(suspicious, exact, none))
        return Finding(tf.reduce_any(infs + nans > 0), infs, nans)

    def _is_suspicious(self, gradients: Sequence[Gradient], divided_by: int | None) -> tf.Tensor:
        # A sum with an inf or a NaN in it is never finite, so a finite total clears them all in
        # one pass that allocates nothing. A sum of finite numbers can overflow by itself.
        values = [screened for g in gradients if (screened := _screened(g)) is not None]
        sums = [tf.zeros(()), *(tf.cast(tf.reduce_sum(v), tf.float32) for v in values)]
        if divided_by is not None:
            # XLA's largest number passes over NaN, so that the sum is needed beside it. The
            # screen is below the limit by more than the limit's rounding to 16 bits.
            sums += [_infinite_at(v, 0.99 * self._limit(v.dtype, divided_by)) for v in values]
        return tf.logical_not(tf.math.is_finite(tf.add_n(sums)))

    def _read_status(self, gradients: Sequence[Gradient]) -> tf.Tensor:
        if self.mode == INF_NAN or not _installed_status:
            return tf.constant(False)
        # The register covers every operation since the last clear, so it is read only once the
        # gradients exist, and cleared before anything of the next step can run.
        with tf.control_dependencies([_values(gradient) for gradient in gradients]):
            overflowed = tf.identity(_installed_status[0].get())
        with tf.control_dependencies([overflowed]):
            cleared = in_order(_installed_status[0].clear)
        with tf.control_dependencies(cleared):
            return tf.identity(overflowed)

    def _count(self, bundles: Sequence[Bundle], divided_by: int | None) -> tf.Tensor:
        counts = tf.concat([self._count_bundle(bundle, divided_by) for bundle in bundles], axis=1)
        entries = [index for bundle in bundles for index in bundle.indices]
        return tf.gather(counts, np.argsort(entries), axis=1)

    def _count_bundle(self, bundle: Bundle, divided_by: int | None) -> tf.Tensor:
        rows = len(bundle.indices)
        summed = tf.reshape(_summed_duplicates(bundle.gradient), [rows, -1])
        values = tf.reshape(_components(summed, axis=1), [rows, -1])
        if not values.dtype.is_floating:
            return tf.zeros((2, rows), tf.int64)
        count = _counter(values.dtype) if keeps_order() else _limited_and_nan
        return count(values, self._limit(values.dtype, divided_by))

    def _limit(self, dtype: tf.DType, divided_by: int | None) -> tf.Tensor:
        if divided_by is None:
            return tf.constant(float("inf"), dtype)
        compute = tf.as_dtype(self.compute_dtype)
        largest = float(compute.max if compute.is_floating else dtype.max) / divided_by
        return tf.constant(min(largest, float(dtype.max)), dtype)


class Finding(NamedTuple):
    """What an inspection of gradients found.

    Attributes:
        overflowed: bool scalar.
        infs: int64 vector, infinite (saturation mode: saturated) elements of each gradient.
        nans: int64 vector, NaN elements of each gradient.
    """

    overflowed: tf.Tensor
    infs: tf.Tensor
    nans: tf.Tensor


class CheckedBefore(NamedTuple):
    """The check of gradients that were inspected while they still had the loss scale.

    Clipping by value may since have hidden an infinity, and unscaling a saturated value.

    Attributes:
        before: what was found then, or None if nobody has looked.
    """

    before: Finding | None

    def inspect(self, gradients: Sequence[Gradient], divided_by: int = 1) -> Finding:
        """Looks for infinities and NaN, and adds what was found before; see `OverflowCheck`."""
        now = self.inspect_aggregate(gradients)
        before = self.before
        if before is None:
            return now
        overflowed = tf.logical_or(now.overflowed, before.overflowed)
        if before.infs.shape != now.infs.shape:  # some were left out, or ranks sent more
            return now._replace(overflowed=overflowed)
        pairs = zip(now[1:], before[1:], strict=True)
        return Finding(overflowed, *(tf.maximum(new, old) for new, old in pairs))

    def inspect_aggregate(self, gradients: Sequence[Gradient]) -> Finding:
        """Looks for infinities and NaN in the aggregate."""
        return OverflowCheck(INF_NAN, "float32").inspect_aggregate(gradients)


def no_finding(gradient_count: int) -> Finding:
    """The finding of gradients that nobody looks at."""
    # Two tensors: Grappler of TensorFlow 2.21.0 breaks the sum of a constant with itself in a
    # conditional of `tf.compat.v1`.
    infs, nans = (tf.zeros((gradient_count,), tf.int64) for _ in range(2))
    return Finding(tf.constant(False), infs, nans)


def _limited_and_nan(values: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    limited, nan = tf.abs(values) >= limit, tf.math.is_nan(values)
    return tf.stack([tf.math.count_nonzero(mask, axis=1) for mask in (limited, nan)])


@functools.cache
def _counter(dtype: tf.DType) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Counts by a function of TensorFlow, traced once and not again for each gradient."""
    signature = [tf.TensorSpec((None, None), dtype), tf.TensorSpec((), dtype)]
    return tf.function(_limited_and_nan, input_signature=signature, autograph=False)


def _infinite_at(values: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """Infinity if a magnitude reaches the limit, else 0."""
    largest = tf.maximum(tf.reduce_max(values), -tf.reduce_min(values))
    return tf.where(largest >= limit, float("inf"), 0.0)


def _screened(gradient: Gradient) -> tf.Tensor | None:
    """Numbers that are finite and below a limit only if all that will be applied are."""
    values = _components(_values(gradient))
    if not values.dtype.is_floating:
        return None
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    if isinstance(gradient, tf.IndexedSlices):
        # Rows of one index are added up later; with magnitudes no cancellation can hide that
        # one such sum overflows.
        values = tf.reduce_sum(tf.abs(values), axis=1 if gradient.dtype.is_complex else 0)
    return values


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _components(values: tf.Tensor, axis: int = 0) -> tf.Tensor:
    """Complex numbers as their two real parts, along a new axis; others as they are."""
    if not values.dtype.is_complex:
        return values
    return tf.stack([tf.math.real(values), tf.math.imag(values)], axis)


def _summed_duplicates(gradient: Gradient) -> tf.Tensor:
    """The rows an IndexedSlices will add to its variable: duplicates summed, never densified."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    values = gradient.values
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)  # as `unscale` does before they are added up
    order = tf.argsort(gradient.indices)
    ordered = tf.gather(gradient.indices, order)
    starts = tf.concat([[0], tf.cast(tf.not_equal(ordered[1:], ordered[:-1]), tf.int32)], axis=0)
    segments = tf.cumsum(starts[: tf.shape(order)[0]])
    return tf.math.unsorted_segment_sum(
        tf.gather(values, order), segments, num_segments=tf.shape(values)[0]
    )
