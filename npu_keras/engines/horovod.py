# SPDX-License-Identifier: Apache-2.0
"""The engine for scripts that have initialised Horovod themselves."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from npu_keras.engines.base import (
    DEFAULT_TIMEOUT_S,
    MEBIBYTE,
    EngineError,
    Reduction,
    check_reduction,
    check_root,
)


class HorovodEngine:
    """One process per device under `horovodrun`, over `horovod.tensorflow`.

    Written to Horovod's documented calls (API reference of 0.28: `allreduce`, `allgather`,
    `broadcast`, `allgather_object`), and tested against a stand-in for that module only, never
    with Horovod itself: its last release does not build with the TensorFlow of today.

    Horovod waits for missing ranks by its own rules: set `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS`
    for a time-out. It packs small tensors itself.

    Args:
        timeout_s: float, seconds; kept for its value only.

    Raises:
        EngineError: if `horovod.tensorflow` is not imported, or not initialised.
    """

    name = "horovod"
    bucket_bytes = 64 * MEBIBYTE
    capabilities = frozenset({"in_graph", "async"})

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        horovod: Any = sys.modules.get("horovod.tensorflow")
        if horovod is None or not horovod.is_initialized():
            raise EngineError(
                "The horovod engine needs Horovod to be running. Put `import horovod.tensorflow "
                "as hvd; hvd.init()` at the top of the script, and start it with `horovodrun`."
            )
        self._horovod = horovod
        self.rank, self.size, self.timeout_s = horovod.rank(), horovod.size(), timeout_s

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, reduction: Reduction, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Reduces each tensor over the ranks, elementwise; see `Engine.all_reduce`."""
        check_reduction(reduction)
        op = getattr(self._horovod, reduction.capitalize())
        return [
            self._horovod.allreduce(tensor, op=op, name=_as_name("all_reduce", lane, label, i))
            for i, tensor in enumerate(tensors)
        ]

    def all_gather(self, tensor: tf.Tensor, *, lane: int, label: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks along axis 0; see `Engine.all_gather`."""
        return self._horovod.allgather(tensor, name=_as_name("all_gather", lane, label, 0))

    def broadcast(
        self, tensors: Sequence[tf.Tensor], *, root_rank: int = 0, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Gives every rank the tensors of `root_rank`; see `Engine.broadcast`."""
        check_root(root_rank, self.size)
        return [
            self._horovod.broadcast(tensor, root_rank, name=_as_name("broadcast", lane, label, i))
            for i, tensor in enumerate(tensors)
        ]

    def barrier(self, label: str) -> None:
        """Waits until every rank is here."""
        self.exchange(None, f"barrier {label}")

    def exchange(self, value: Any, label: str = "exchange") -> list[Any]:
        """Gives every rank the values of all ranks; see `Engine.exchange`."""
        return list(self._horovod.allgather_object(value, name=_as_name("exchange", 0, label, 0)))

    def shutdown(self) -> None:
        """Leaves Horovod running: the script that started it also stops it."""


def _as_name(kind: str, lane: int, label: str, position: int) -> str:
    """A name by which Horovod finds the same tensor on every rank."""
    text = re.sub(r"[^A-Za-z0-9_.]+", "_", label)
    return f"npu_keras.{kind}.{lane}.{text}.{position}"
