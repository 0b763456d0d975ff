# SPDX-License-Identifier: Apache-2.0
"""The engine for Ascend devices: the collective ops of the vendor's adapter."""

import importlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from npu_keras import adapters, cluster
from npu_keras.engines.base import (
    DEFAULT_TIMEOUT_S,
    MEBIBYTE,
    EngineError,
    Reduction,
    check_reduction,
    check_root,
)
from npu_keras.engines.packing import pack, unpack

_OPS = {"npu_device": "npu_device.distribute.hccl_ops", "npu_bridge": "npu_bridge.hccl.hccl_ops"}
_UNFUSED = 0  # the buckets are made already


class HcclEngine:
    """One process per Ascend device, over the `hccl_ops` of the installed adapter.

    Written to the vendor's documented calls (CANN commercial documentation, "collective
    communication" of the TensorFlow adapters: `allreduce`, `allgather`, `broadcast`), and tested
    against a stand-in for that module only, never on a device.

    HCCL waits for missing ranks by its own rules: set `HCCL_CONNECT_TIMEOUT` and
    `HCCL_EXEC_TIMEOUT`. It takes int8, int16, int32, float16 and float32 everywhere, int64 and
    bfloat16 on Atlas A2 and later. The device must be open before the first call
    (`npu_device.open().as_default()`).

    Args:
        timeout_s: float, seconds; kept for its value only.

    Raises:
        EngineError: if no adapter is installed.
    """

    name = "hccl"
    bucket_bytes = 64 * MEBIBYTE
    capabilities = frozenset({"in_graph", "async"})

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        installed = adapters.installed(_OPS)
        if not installed:
            raise EngineError(
                f"The hccl engine needs one of the Ascend adapters {tuple(_OPS)}. Install the one "
                "of your CANN release."
            )
        self._ops: Any = importlib.import_module(_OPS[installed[0]])
        place = cluster.find()
        self.rank, self.size, self.timeout_s = place.rank, place.size, timeout_s

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, reduction: Reduction, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Reduces each tensor over the ranks, elementwise; see `Engine.all_reduce`."""
        check_reduction(reduction)
        if not tensors:
            return []
        reduced = self._ops.allreduce(pack(tensors), reduction, fusion=_UNFUSED)
        return unpack(reduced, tensors)

    def all_gather(self, tensor: tf.Tensor, *, lane: int, label: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks along axis 0; see `Engine.all_gather`.

        HCCL gathers equal shapes: the rows are padded to the longest.
        """
        rows = self._ops.allgather(tf.shape(tensor)[:1], self.size)
        longest = tf.maximum(tf.reduce_max(rows), 1)
        below = tf.concat([longest[None] - tf.shape(tensor)[:1], tf.shape(tensor)[1:]], 0)
        padded = tf.concat([tensor, tf.zeros(below, tensor.dtype)], 0)
        parts = tf.split(self._ops.allgather(padded, self.size), self.size)
        return tf.concat([part[: rows[rank]] for rank, part in enumerate(parts)], 0)

    def broadcast(
        self, tensors: Sequence[tf.Tensor], *, root_rank: int = 0, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Gives every rank the tensors of `root_rank`; see `Engine.broadcast`."""
        check_root(root_rank, self.size)
        if not tensors:
            return []
        return list(self._ops.broadcast(list(tensors), root_rank, fusion=_UNFUSED))

    def barrier(self, label: str) -> None:
        """Waits until every rank is here."""
        self.exchange(None, f"barrier {label}")

    def exchange(self, value: Any, label: str = "exchange") -> list[Any]:
        """Gives every rank the values of all ranks; see `Engine.exchange`.

        They travel as a tensor of bytes, a line each.
        """
        line = np.frombuffer(json.dumps(value).encode() + b"\n", np.int8)
        lines = self.all_gather(tf.constant(line), lane=0, label=label).numpy().tobytes()
        return [json.loads(line) for line in lines.splitlines()]

    def shutdown(self) -> None:
        """Leaves the device open: the script that opened it also closes it."""
