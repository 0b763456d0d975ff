# SPDX-License-Identifier: Apache-2.0
"""How one optimizer talks to its peers: what it sends, what arrives, and who decides."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from npu_keras.engines.strategy import ReplicaTransport
from npu_keras.sparse import Gradient

Settings = Callable[[], dict[str, Any]]
"""Gives what has to be the same on all ranks, by name and JSON-safe."""


class GradientList(NamedTuple):
    """The gradients there are, and the position of each among the trained variables."""

    gradients: list[Gradient]
    positions: list[int]


class Channel(Protocol):
    """What a step needs of its peers: ranks, replicas, or nobody.

    Attributes:
        size: how many take the step together.
        may_overflow: whether finite gradients of all can still overflow in the aggregate.
        divisor: what gradients are divided by before they are sent.
    """

    size: int
    may_overflow: bool
    divisor: int

    def rank_tensor(self) -> tf.Tensor:
        """Returns the own rank, int64 scalar in 0..size-1."""

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns the elementwise sum of an int64 vector over all peers."""

    def outgoing(self, own: GradientList) -> GradientList:
        """Returns what is sent; overflows are looked for in this."""

    def reduce(self, sent: GradientList) -> GradientList:
        """Returns the aggregate of what all peers sent, the same on all of them."""

    def parts(self, sent: GradientList) -> list[list[int]]:
        """Returns the entries of `sent` that arrive together, in the order of arrival."""

    def commit(self, write: Callable[..., None], scalars: Any, gradients: list[Gradient]) -> None:
        """Calls `write(scalars, gradients)` where variables of all peers can be written."""

    def update(self, function: Callable[[Any], None], gradients: Any) -> None:
        """Calls `function(gradients)` where the host's own update belongs; inside `commit`."""

    def prepare(self, trained: Sequence[Any], others: Sequence[Any], settings: Settings) -> None:
        """Makes the peers agree before their first step; does nothing later."""


class Alone:
    """Nobody else: what is sent is what arrives."""

    size = 1
    may_overflow = False
    divisor = 1

    def rank_tensor(self) -> tf.Tensor:
        """Returns 0."""
        return tf.zeros((), tf.int64)

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns the vector."""
        return vector

    def outgoing(self, own: GradientList) -> GradientList:
        """Returns the own gradients."""
        return own

    def reduce(self, sent: GradientList) -> GradientList:
        """Returns the own gradients."""
        return sent

    def parts(self, sent: GradientList) -> list[list[int]]:
        """Returns everything as one part."""
        return [list(range(len(sent.gradients)))]

    def commit(self, write: Callable[..., None], scalars: Any, gradients: list[Gradient]) -> None:
        """Calls `write` at once."""
        write(scalars, gradients)

    def update(self, function: Callable[[Any], None], gradients: Any) -> None:
        """Calls `function` at once."""
        function(gradients)

    def prepare(self, trained: Sequence[Any], others: Sequence[Any], settings: Settings) -> None:
        """Does nothing."""


class Replicas(Alone):
    """The replicas of a `tf.distribute` strategy.

    Args:
        aggregated: whether the gradients are sums over all replicas already.
    """

    def __init__(self, *, aggregated: bool = False) -> None:
        self.may_overflow = not aggregated
        self._transport = ReplicaTransport()
        self.size = self._transport.size

    def rank_tensor(self) -> tf.Tensor:
        """Returns the replica's number."""
        return self._transport.rank_tensor()

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns the elementwise sum over all replicas."""
        (common,) = self._transport.sum([vector])
        return common

    def reduce(self, sent: GradientList) -> GradientList:
        """Returns the sums over all replicas."""
        if not self.may_overflow:
            return sent
        return GradientList(self._transport.sum(sent.gradients), sent.positions)

    def commit(self, write: Callable[..., None], scalars: Any, gradients: list[Gradient]) -> None:
        """Calls `write` in the cross-replica context, where the strategy has one."""
        self._transport.across(write, scalars, gradients)

    def update(self, function: Callable[[Any], None], gradients: Any) -> None:
        """Calls `function` in every replica."""
        self._transport.in_replicas(function, gradients)
