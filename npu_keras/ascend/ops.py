# SPDX-License-Identifier: Apache-2.0
"""The few operations of Ascend's adapters that training scripts call, made of TensorFlow's own."""

from typing import Any

import tensorflow as tf

from npu_keras.inputs import as_tensor


def gelu(x: Any) -> tf.Tensor:
    """Returns x times the normal distribution function at x, by its tanh approximation.

    Args:
        x: floating tensor of any shape.
    """
    return tf.nn.gelu(_floating(x), approximate=True)


def fast_gelu(x: Any) -> tf.Tensor:
    """Returns `x * sigmoid(1.702 x)`, the approximation documented for `fast_gelu`.

    Args:
        x: floating tensor of any shape.
    """
    x = _floating(x)
    return x * tf.sigmoid(tf.constant(1.702, x.dtype) * x)


def dropout(
    x: Any, keep_prob: Any, noise_shape: Any = None, seed: int | None = None, name: Any = None
) -> tf.Tensor:
    """Keeps elements with a probability, scaled up by it, and sets the others to 0.

    Args:
        x: floating tensor of any shape.
        keep_prob: probability to keep an element, a number or a scalar tensor.
        noise_shape: shape of the random mask; that of `x` by default.
        seed: seed of the mask.
        name: name of the operation.
    """
    return tf.nn.dropout(
        _floating(x), rate=1.0 - keep_prob, noise_shape=noise_shape, seed=seed, name=name
    )


def drop_out_gen_mask(
    shape: Any, prob: Any, seed: int = 0, seed2: int = 0, name: str | None = None
) -> tf.Tensor:
    """Draws which elements are kept: a uint8 tensor of 0 and 1 (bits, on the hardware).

    Args:
        shape: shape of the mask.
        prob: probability to keep an element.
        seed: first seed; two that are 0 mean a random one.
        seed2: second seed.
        name: name of the operation.
    """
    drawn = tf.raw_ops.RandomUniform(
        shape=tf.convert_to_tensor(shape, tf.int32),
        dtype=tf.float32,
        seed=seed or 0,
        seed2=seed2 or 0,
    )
    return tf.cast(drawn < tf.cast(prob, tf.float32), tf.uint8, name=name)


def drop_out_do_mask(x: Any, mask: Any, keep_prob: Any, name: str | None = None) -> tf.Tensor:
    """Sets elements to 0 that are not kept, and scales up the others.

    Args:
        x: floating tensor of any shape.
        mask: what `drop_out_gen_mask` drew.
        keep_prob: probability to keep an element.
        name: name of the operation.
    """
    x = _floating(x)
    scaled = x / tf.cast(keep_prob, x.dtype)
    return tf.where(tf.cast(mask, tf.bool), scaled, tf.zeros_like(x), name=name)


def _floating(x: Any) -> tf.Tensor:
    tensor = as_tensor("`x`", x, "a floating tensor")
    if not tensor.dtype.is_floating:
        raise TypeError(f"`x` must be a floating tensor. Received: dtype {tensor.dtype.name}")
    return tensor


drop_out_gen_mask_v3, drop_out_do_mask_v3 = drop_out_gen_mask, drop_out_do_mask


def initialize_system(name: str | None = None) -> Any:
    """Returns an operation that does nothing: there is no device system to set up."""
    return tf.no_op(name=name)


def shutdown_system(name: str | None = None) -> Any:
    """Returns an operation that does nothing: there is no device system to take down."""
    return tf.no_op(name=name)
