# SPDX-License-Identifier: Apache-2.0
"""What an engine is: the calls by which gradients travel between ranks."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import tensorflow as tf

from npu_keras._arguments import is_whole

Reduction = Literal["sum", "max", "min"]
REDUCTIONS: tuple[str, ...] = ("sum", "max", "min")
DEFAULT_TIMEOUT_S = 300.0
MEBIBYTE = 1 << 20


class EngineError(RuntimeError):
    """The engine asked for cannot be used here; the message says what to change."""


class EngineTimeout(EngineError):
    """A collective was given up: a rank has died, has left, or stayed silent too long.

    The message names the missing ranks, the tensors (`label`) and the bucket (`lane`).
    Inside a `tf.function` TensorFlow turns it into a `tf.errors.OpError` with the same message.
    """


@runtime_checkable
class Engine(Protocol):
    """The way tensors travel between ranks.

    Every method works eagerly and inside a `tf.function`, except `exchange`, `barrier` and
    `shutdown`, which are eager. Every rank must make the same calls with the same arguments;
    calls on different lanes need no common order at run time. Every wait ends after `timeout_s`
    at the latest, with an `EngineTimeout` that names the ranks that are missing.

    Attributes:
        name: str, the name `find` knows it by.
        rank: int, this process, from 0 to `size - 1`.
        size: int, number of processes.
        timeout_s: float, the longest wait, in seconds.
        bucket_bytes: int, the bucket size in bytes this engine is fastest with.
        capabilities: frozenset of `"in_graph"` (made of TensorFlow ops alone), `"xla"`
            (compiles under `jit_compile=True`) and `"async"` (computation goes on meanwhile).
    """

    name: str
    rank: int
    size: int
    timeout_s: float
    bucket_bytes: int
    capabilities: frozenset[str]

    def all_reduce(
        self,
        tensors: Sequence[tf.Tensor],
        *,
        reduction: Reduction,
        lane: int,
        label: str,
    ) -> list[tf.Tensor]:
        """Reduces each tensor over the ranks, elementwise.

        Args:
            tensors: dense tensors of one dtype, float or integer, the same shapes on every rank.
            reduction: `"sum"`, `"max"` or `"min"`.
            lane: int, number of the bucket: the same on every rank and in every step.
            label: str, names the tensors in error messages.

        Returns:
            List of tensors, shapes and dtype of the inputs, bit-equal on every rank.
        """
        ...

    def all_gather(self, tensor: tf.Tensor, *, lane: int, label: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks along axis 0, in rank order.

        Args:
            tensor: tensor of shape `(rows, ...)`; `rows` may differ between ranks, or be 0.
            lane: int, as in `all_reduce`.
            label: str, as in `all_reduce`.

        Returns:
            Tensor of shape `(sum of rows, ...)`.
        """
        ...

    def broadcast(
        self, tensors: Sequence[tf.Tensor], *, root_rank: int = 0, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Gives every rank the tensors of `root_rank`, bit for bit; dtypes may differ."""
        ...

    def barrier(self, label: str) -> None:
        """Waits until every rank is here."""
        ...

    def exchange(self, value: Any, label: str = "exchange") -> list[Any]:
        """Gives every rank the values of all ranks, in rank order.

        Args:
            value: anything `json` can write; small.
            label: str, names the exchange in error messages; the same on every rank.
        """
        ...

    def shutdown(self) -> None:
        """Leaves: tells the other ranks, waits for them to leave as well, frees the transport."""
        ...


def check_reduction(reduction: str) -> None:
    """Raises a ValueError unless `reduction` is `"sum"`, `"max"` or `"min"`."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"Expected reduction to be one of {REDUCTIONS}. Received: reduction={reduction!r}. "
            "For a mean, divide by the number of ranks before the sum."
        )


def check_root(root_rank: int, size: int) -> None:
    """Raises a ValueError unless `root_rank` is a rank."""
    if not is_whole(root_rank) or not 0 <= root_rank < size:
        raise ValueError(
            f"Expected root_rank to be from 0 to {size - 1}. Received: root_rank={root_rank!r}."
        )
