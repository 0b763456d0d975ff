# SPDX-License-Identifier: Apache-2.0
"""Writes that keep the old value: the branch-free way to skip an update, for XLA.

Inside XLA a conditional copies every variable that one of its branches writes. A write of
`where(condition, new, old)` is fused into the update that computes `new`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from npu_keras.sparse import map_values

Write = Callable[..., Any]
Masking = Callable[[tf.Variable, Write, tf.Tensor], Write]
"""Makes a write of a variable depend on a condition."""


@contextmanager
def masked(variables: Sequence[tf.Variable], condition: tf.Tensor) -> Iterator[None]:
    """Makes every write to some variables depend on a condition.

    Their methods are replaced for the time being, which reaches whatever an optimizer writes:
    weights, slots, counters, weight decay and moving averages. Writes by raw operations, and by
    methods that no Keras optimizer uses, are not reached.

    Args:
        variables: TensorFlow variables of one device.
        condition: bool scalar; where it is False, values stay as they are, bit for bit.
    """
    several = {id(variable): variable for variable in variables}.values()
    for variable in several:
        writes = {name: getattr(variable, name) for name in _MASKED}
        vars(variable).update(
            {name: _MASKED[name](variable, write, condition) for name, write in writes.items()}
        )
    try:
        yield
    finally:
        for variable in several:
            for name in _MASKED:
                del vars(variable)[name]


def _assigning(variable: tf.Variable, write: Write, condition: tf.Tensor) -> Write:
    def assign(value: Any, *args: Any, **kwargs: Any) -> Any:
        new = tf.cast(value, variable.dtype)
        return write(tf.where(condition, new, variable.read_value()), *args, **kwargs)

    return assign


def _zero(dtype: tf.DType) -> tf.Tensor:
    return tf.zeros((), dtype)


def _negative_zero(dtype: tf.DType) -> tf.Tensor:
    # Not by a constant -0.0, for which eager TensorFlow 2.21.0 hands out a 0.0 it has cached.
    return -_zero(dtype) if dtype.is_floating or dtype.is_complex else _zero(dtype)


def _adding(nothing: Callable[[tf.DType], tf.Tensor]) -> Masking:
    def masking(variable: tf.Variable, write: Write, condition: tf.Tensor) -> Write:
        def masked_values(values: tf.Tensor) -> tf.Tensor:
            return tf.where(condition, tf.cast(values, variable.dtype), nothing(variable.dtype))

        def add(delta: Any, *args: Any, **kwargs: Any) -> Any:
            return write(map_values(masked_values, delta), *args, **kwargs)

        return add

    return masking


def _scattering(variable: tf.Variable, write: Write, condition: tf.Tensor) -> Write:
    def scatter_update(rows: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        new = tf.cast(rows.values, variable.dtype)
        old = tf.gather(variable.read_value(), rows.indices)
        values = tf.where(condition, new, old)
        return write(tf.IndexedSlices(values, rows.indices), *args, **kwargs)

    return scatter_update


# Adding -0.0 changes no number, and so does subtracting 0.0, whereas -0.0 + 0.0 is 0.0.
_MASKED: dict[str, Masking] = {
    "assign": _assigning,
    "assign_add": _adding(_negative_zero),
    "assign_sub": _adding(_zero),
    "scatter_add": _adding(_negative_zero),
    "scatter_sub": _adding(_zero),
    "scatter_update": _scattering,
}
