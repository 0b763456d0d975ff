# SPDX-License-Identifier: Apache-2.0
"""What can be told of a loss before it is scaled: is it finite, is it scaled already?"""

import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from npu_keras.inputs import loss_tensor
from npu_keras.scaling import LossScaling
from npu_keras.unscaling import scale_loss

_LONGEST_SEARCH = 200


class LossCheck:
    """Looks at the loss of one `compute_gradients`.

    Args:
        scaling: the loss scaling of the optimizer.
    """

    def __init__(self, scaling: LossScaling) -> None:
        self._scaling = scaling
        self._finite: tf.Tensor | None = None

    def scaled(self, loss: Any, grad_loss: Any, scale: tf.Tensor) -> tuple[Any, Any]:
        """Returns what the inner optimizer is given.

        Args:
            loss: tensor, or a function that returns it.
            grad_loss: its gradient, or None.
            scale: float32 scalar.
        """

        def scaled() -> tf.Tensor:
            value = loss_tensor(loss() if callable(loss) else loss)
            self.look_at(value)
            return scale_loss(value, scale)

        if grad_loss is not None:
            grad_loss = tf.convert_to_tensor(grad_loss)
            wide = tf.float64 if grad_loss.dtype == tf.float64 else tf.float32
            grad_loss = tf.cast(grad_loss, wide)
        return scaled if callable(loss) else scaled(), grad_loss

    def look_at(self, loss: tf.Tensor) -> None:
        """Notes whether a loss is finite; warns if the script has scaled it."""
        self._scaling.scaled_a_loss = True
        floating = loss if loss.dtype.is_floating else tf.cast(loss, tf.float32)
        self._finite = tf.reduce_all(tf.math.is_finite(floating))
        if tf.is_symbolic_tensor(loss) and self._is_scaled(loss):
            warnings.warn(
                "The loss depends on the loss scale already, and `compute_gradients` multiplies by "
                "it once more: gradients would come out too large by that factor. Pass the plain "
                "loss; leave scaling and unscaling to the optimizer.",
                stacklevel=6,
            )

    def forward_finite(self) -> tf.Tensor:
        """Returns whether the loss was finite, a bool scalar; True if it was not looked at."""
        return tf.constant(True) if self._finite is None else self._finite

    def _is_scaled(self, loss: tf.Tensor) -> bool:
        handle = self._scaling.state.loss_scale.handle
        return any(tensor is handle for tensor in _sources(loss))


def warn_of_constant_scale(manager: Any) -> None:
    """Warns if a graph may hold a loss scale that was read before there was an optimizer."""
    if getattr(manager, "read_unbound", False) and not tf.executing_eagerly():
        warnings.warn(
            "`get_loss_scale()` was called before the manager had an optimizer, and gave the first "
            "loss scale as a constant. If the loss was multiplied by it, gradients come out too "
            "large by that factor: pass the plain loss. To show the scale, ask for it after the "
            "optimizer has been made.",
            stacklevel=6,
        )


def _sources(loss: tf.Tensor) -> Iterator[Any]:
    """Walks back from a scalar through scalars, to what they are read from."""
    captured = {id(inner): outer for outer, inner in getattr(loss.graph, "captures", ())}
    waiting, seen = [loss], {id(loss)}
    while waiting and len(seen) < _LONGEST_SEARCH:
        tensor = waiting.pop()
        yield captured.get(id(tensor), tensor)
        for source in tensor.op.inputs:
            if source.shape.rank == 0 and id(source) not in seen:
                seen.add(id(source))
                waiting.append(source)
