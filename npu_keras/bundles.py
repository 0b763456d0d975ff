# SPDX-License-Identifier: Apache-2.0
"""Many small gradients of one shape, stacked to be worked on by one operation.

An operation on a few thousand numbers costs more to start than to do, and models have hundreds
of equal layers.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import tensorflow as tf

from npu_keras._upstream import in_xla
from npu_keras.sparse import Gradient, map_values

MOST_BYTES = 2**16
"""Larger gradients are not stacked: copying them would cost more than it spares."""


class Bundle(NamedTuple):
    """Gradients that are worked on together.

    Attributes:
        indices: which ones.
        stacked: a tensor with one row for each, or None.
        alone: the gradient, where it is only one.
    """

    indices: list[int]
    stacked: tf.Tensor | None
    alone: Gradient | None

    @property
    def gradient(self) -> Gradient:
        """All numbers of the bundle."""
        return self.alone if self.stacked is None else self.stacked


def bundled(gradients: Sequence[Gradient]) -> list[Bundle]:
    """Stacks small dense gradients of one shape, dtype and device; others stay alone.

    XLA fuses operations by itself, and would have to make the stack.

    Args:
        gradients: tensors or IndexedSlices.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, gradient in enumerate(gradients):
        key = index if in_xla() else _kind(gradient) or index
        groups.setdefault(key, []).append(index)
    return [_bundle(gradients, indices) for indices in groups.values()]


def mapped(
    function: Callable[[tf.Tensor], tf.Tensor], gradients: Sequence[Gradient]
) -> list[Gradient]:
    """Applies an elementwise function to every gradient, to those of a bundle at once.

    Args:
        function: takes and returns a tensor of any shape.
        gradients: tensors or IndexedSlices, of which the rows are changed.
    """
    results: dict[int, Gradient] = {}
    for bundle in bundled(gradients):
        done = map_values(function, bundle.gradient)
        parts = [done] if bundle.stacked is None else tf.unstack(done, len(bundle.indices))
        results.update(zip(bundle.indices, parts, strict=True))
    return [results[index] for index in range(len(gradients))]


def _kind(gradient: Gradient) -> Hashable:
    """What must be the same for gradients to be stacked; None for one that stays alone."""
    if isinstance(gradient, tf.IndexedSlices) or not gradient.shape.is_fully_defined():
        return None
    size = gradient.shape.num_elements() * gradient.dtype.size
    small = size <= MOST_BYTES
    return (tuple(gradient.shape.as_list()), gradient.dtype, gradient.device) if small else None


def _bundle(gradients: Sequence[Gradient], indices: list[int]) -> Bundle:
    if len(indices) == 1:
        return Bundle(indices, None, gradients[indices[0]])
    return Bundle(indices, tf.stack([gradients[index] for index in indices]), None)
