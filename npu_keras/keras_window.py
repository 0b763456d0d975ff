# SPDX-License-Identifier: Apache-2.0
"""The accumulation window of a Keras 3 optimizer, on the accumulators it made itself."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras._upstream import add_to_accumulators, as_single_step
from npu_keras.channels import GradientList
from npu_keras.sparse import map_values


class KerasWindow:
    """Sums in the optimizer's own accumulators, which its checkpoints hold.

    Args:
        optimizer: the Keras optimizer that updates, with `gradient_accumulation_steps`.
        positions: the variables that have gradients.
    """

    def __init__(self, optimizer: Any, positions: Sequence[int]) -> None:
        self._optimizer = optimizer
        self._positions = list(positions)
        self._steps = optimizer.gradient_accumulation_steps

    def add(self, gradients: GradientList) -> None:
        """Adds a k-th of each gradient, so that a sum of finite numbers cannot overflow."""
        sums = [self._sum(position) for position in gradients.positions]
        pairs = zip(gradients.gradients, sums, strict=True)
        shares = [self._share(gradient, accumulator) for gradient, accumulator in pairs]
        add_to_accumulators(self._optimizer, shares, sums)

    def advance(self, finite: tf.Tensor) -> tf.Tensor:
        """Counts a finite micro-batch; returns whether the window is full."""
        counter = self._optimizer._iterations
        counter.assign_add(tf.cast(finite, counter.dtype))
        return tf.convert_to_tensor(counter) % self._steps == 0

    def means(self) -> GradientList:
        """Returns the means over the micro-batches."""
        sums = [tf.convert_to_tensor(self._sum(position)) for position in self._positions]
        return GradientList(sums, self._positions)

    def flush(self, update: Callable[[], None]) -> None:
        """Calls `update` as one step of the optimizer, then empties the sums."""
        with as_single_step(self._optimizer):
            update()
        for position in self._positions:
            accumulator = self._sum(position)
            accumulator.assign(tf.zeros(accumulator.shape, accumulator.dtype))

    def _sum(self, position: int) -> Any:
        return self._optimizer._accumulated_gradients[position]

    def _share(self, gradient: Any, accumulator: Any) -> Any:
        def share(values: tf.Tensor) -> tf.Tensor:
            return tf.cast(values / tf.constant(self._steps, values.dtype), accumulator.dtype)

        return map_values(share, gradient)
