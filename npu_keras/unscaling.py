# SPDX-License-Identifier: Apache-2.0
"""Scaling the loss, and taking the scale out of the gradients again."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras._upstream import in_xla
from npu_keras.bundles import mapped
from npu_keras.channels import GradientList
from npu_keras.sparse import Gradient

NARROW = (tf.float16, tf.bfloat16)


def scale_loss(loss: Any, loss_scale: Any) -> tf.Tensor:
    """Multiplies the loss by the loss scale, in float32 at least.

    In float16 the product would overflow by itself: 2**32 alone is beyond its 65504.

    Args:
        loss: scalar or tensor of any real dtype, or a Python number.
        loss_scale: float32 scalar.

    Returns:
        A tensor of the loss' shape; float32, or float64 for a float64 loss.
    """
    loss = tf.convert_to_tensor(loss)
    if loss.dtype != tf.float64:
        loss = tf.cast(loss, tf.float32)
    return loss * tf.cast(loss_scale, loss.dtype)


def unscale(gradients: Sequence[Gradient], loss_scale: tf.Tensor) -> list[Gradient]:
    """Divides gradients by the loss scale, in float32 at least.

    Args:
        gradients: tensors or IndexedSlices of any shape; IndexedSlices stay sparse.
        loss_scale: float32 scalar.
    """

    def divided(values: tf.Tensor) -> tf.Tensor:
        if values.dtype in NARROW:
            values = tf.cast(values, tf.float32)
        scale = tf.cast(loss_scale, values.dtype)
        return _multiplied(values, scale) if in_xla() else values / scale

    return mapped(divided, gradients)


def _multiplied(values: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Divides by multiplications, which XLA repeats wherever the result is used.

    It stores the result of a division instead, a pass over memory more. Two factors, because the
    reciprocal of a scale above 2**126 is a denormal number, which most devices flush to zero. For
    powers of two the result is that of the division.
    """
    first = tf.where(scale > 2.0**64, tf.cast(2.0**-64, scale.dtype), tf.cast(1, scale.dtype))
    return values * first * (1 / (scale * first))


def unscaled(
    gradients: GradientList, scale: tf.Tensor, takes_raw: Callable[[int], bool]
) -> GradientList:
    """Returns gradients without the loss scale, but for those that never had it.

    Args:
        gradients: scaled gradients.
        scale: float32 scalar.
        takes_raw: whether the variable at a position is left alone.
    """
    pairs = list(zip(gradients.gradients, gradients.positions, strict=True))
    divided = iter(unscale([g for g, p in pairs if not takes_raw(p)], scale))
    values = [g if takes_raw(p) else next(divided) for g, p in pairs]
    return GradientList(values, gradients.positions)


def present_gradients(
    gradients: Sequence[Gradient | None], positions: Sequence[int]
) -> GradientList:
    """Drops None gradients; raises ValueError when none is left.

    Args:
        gradients: one entry per variable.
        positions: where each variable stands among the trained ones.
    """
    kept = [(g, p) for g, p in zip(gradients, positions, strict=True) if g is not None]
    if not kept:
        raise ValueError(
            "Expected a gradient for at least one variable. Received "
            f"{len(gradients)} gradients, all None. Check that the loss depends on the "
            "variables and was computed inside the GradientTape. The loss scale is unchanged."
        )
    return GradientList([g for g, _ in kept], [p for _, p in kept])
