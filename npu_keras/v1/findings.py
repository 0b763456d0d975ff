# SPDX-License-Identifier: Apache-2.0
"""What `compute_gradients` found in scaled gradients, kept for `apply_gradients`.

Between the two calls a script clips, accumulates, averages or enters a conditional. A finding is
taken into account where it can be reached: eagerly, in the same graph, or from a branch of it.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from npu_keras._upstream import is_usable_here
from npu_keras.overflow import Finding


class Computed(NamedTuple):
    """One or several calls of `compute_gradients`.

    Attributes:
        positions: the variables that got a gradient.
        own: what this rank found in its gradients, an entry for every trained variable.
        aggregate: what was found in the sum over all ranks, where that can overflow.
        forward_finite: bool scalar, whether the loss was finite.
        returned: the gradients that were given to the script; empty for several calls.
    """

    positions: frozenset[int]
    own: Finding
    aggregate: Finding
    forward_finite: tf.Tensor
    returned: tuple[Any, ...]

    def is_exactly(self, gradients: Sequence[Any]) -> bool:
        """Whether gradients are those that were given out, untouched."""
        given = {id(gradient) for gradient in self.returned}
        return bool(given) and {id(gradient) for gradient in gradients} <= given

    def is_reachable(self) -> bool:
        """Whether the finding can be used in the present graph, or eagerly."""
        flag = self.own.overflowed
        if tf.is_symbolic_tensor(flag):
            return not tf.executing_eagerly() and is_usable_here(flag.op)
        return tf.executing_eagerly()


class Findings:
    """The calls of `compute_gradients` since the last `apply_gradients` of their variables."""

    def __init__(self) -> None:
        self._calls: list[Computed] = []

    def add(self, call: Computed) -> None:
        """Notes a call; eagerly, those for the same variables become one."""
        if tf.executing_eagerly():
            # All but the newest, which may be applied as it is, count as micro-batches.
            same = [c for c in self._calls if c.positions == call.positions and c.is_reachable()]
            if same:
                self._calls = [c for c in self._calls if not any(c is other for other in same)]
                self._calls.append(functools.reduce(_merged, same))
        self._calls.append(call)

    def take(self, gradients: Sequence[Any], positions: Sequence[int]) -> Computed | None:
        """Returns what is known of gradients, and forgets it.

        Args:
            gradients: what is going to be applied.
            positions: their variables.
        """
        reachable = [call for call in self._calls if call.is_reachable()]
        exact = [call for call in reachable if call.is_exactly(gradients)]
        related = [call for call in reachable if call.positions & set(positions)]
        found = exact or related
        self._calls = [c for c in self._calls if not any(c is other for other in related)]
        return functools.reduce(_merged, found) if found else None


def spread(finding: Finding, positions: Sequence[int], count: int) -> Finding:
    """Returns a finding with an entry for each of `count` variables, at its position."""
    index = tf.constant(list(positions), tf.int64)[:, None]
    shape = tf.constant([count], tf.int64)
    infs, nans = (tf.scatter_nd(index, each, shape) for each in finding[1:])
    return Finding(finding.overflowed, infs, nans)


def first_of(first: Finding, second: Finding) -> Finding:
    """Returns the first finding where it is an overflow, else the second."""
    return Finding(*(tf.where(first.overflowed, a, b) for a, b in zip(first, second, strict=True)))


def _merged(first: Computed, second: Computed) -> Computed:
    return Computed(
        first.positions | second.positions,
        _either(first.own, second.own),
        _either(first.aggregate, second.aggregate),
        tf.logical_and(first.forward_finite, second.forward_finite),
        returned=(),
    )


def _either(first: Finding, second: Finding) -> Finding:
    overflowed = tf.logical_or(first.overflowed, second.overflowed)
    return Finding(overflowed, first.infs + second.infs, first.nans + second.nans)
