# SPDX-License-Identifier: Apache-2.0
"""The engine of a single process: nothing travels."""

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from npu_keras.engines.base import (
    DEFAULT_TIMEOUT_S,
    MEBIBYTE,
    Reduction,
    check_reduction,
    check_root,
)


class LocalEngine:
    """One process, one device: every call returns what it was given.

    Args:
        timeout_s: float, seconds; kept for its value only, as nothing ever waits.

    Example:

    >>> LocalEngine().exchange("hello")
    ['hello']
    """

    name = "local"
    rank = 0
    size = 1
    bucket_bytes = 64 * MEBIBYTE
    capabilities = frozenset({"in_graph", "xla", "async"})

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s

    def all_reduce(
        self,
        tensors: Sequence[tf.Tensor],
        *,
        reduction: Reduction,
        lane: int,
        label: str,
    ) -> list[tf.Tensor]:
        """Returns the tensors."""
        check_reduction(reduction)
        return list(tensors)

    def all_gather(self, tensor: tf.Tensor, *, lane: int, label: str) -> tf.Tensor:
        """Returns the tensor."""
        return tensor

    def broadcast(
        self, tensors: Sequence[tf.Tensor], *, root_rank: int = 0, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Returns the tensors."""
        check_root(root_rank, self.size)
        return list(tensors)

    def barrier(self, label: str) -> None:
        """Returns at once."""

    def exchange(self, value: Any, label: str = "exchange") -> list[Any]:
        """Returns `[value]`, as `json` would bring it back."""
        return [json.loads(json.dumps(value))]

    def shutdown(self) -> None:
        """Does nothing."""
