# SPDX-License-Identifier: Apache-2.0
"""The engine for processes started under `mpiexec`: MPI through mpi4py."""

import atexit
import itertools
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from npu_keras.engines import mpi_library, mpi_start, mpi_transfers
from npu_keras.engines.base import (
    DEFAULT_TIMEOUT_S,
    MEBIBYTE,
    EngineError,
    Reduction,
    check_reduction,
    check_root,
)
from npu_keras.engines.deferred import Deferred
from npu_keras.engines.packing import pack, unpack

_CHANNELS_MADE = 16  # communicators are made so many at a time
_MOST_CHANNELS = 64  # an MPI library has some 2,000 for a process
_SMALL_BYTES = 1 << 16  # up to here a copy costs less than a call
_SPIN_S = 0.005
_LONGEST_SLEEP_S = 0.0002
_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class _Pending(NamedTuple):
    transfer: mpi_transfers.Transfer
    requests: list[Any]
    label: str


class MpiEngine:
    """One process per device under `mpiexec -n N`, over MPI.

    Lanes have communicators of their own, so that buckets travel in whatever order backward
    makes them; from the 65th lane on they share them, and those that do keep the order of
    tracing. This needs `MPI_THREAD_MULTIPLE`; with `MPI_THREAD_SERIALIZED` there is one
    communicator and one order, and a warning in the log. Tensors are sent from where they are.

    16-bit floats, for which MPI has no type, travel as 16 bits, are reduced in float32 and
    rounded once, so that a sum does not lose digits with every rank.

    Args:
        timeout_s: float, the longest wait for another rank, in seconds.

    Raises:
        EngineError: if mpi4py or an MPI library is missing, or MPI was not started by the
            `mpiexec` of the library at hand.
        EngineTimeout: if a rank does not start.
    """

    name = "mpi"
    bucket_bytes = 8 * MEBIBYTE
    capabilities = frozenset({"async"})

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._owns_mpi = not mpi_library.is_loaded()
        self._mpi = mpi_library.load(timeout_s)
        world = self._mpi.COMM_WORLD
        self.rank, self.size, self.timeout_s = world.rank, world.size, timeout_s
        mpi_start.check_launcher(self.rank, self.size)
        self._several_lanes = mpi_start.allows_many_threads(self._mpi)
        self._lock = threading.RLock()
        self._channels: list[Any] = []
        self._pool = mpi_transfers.Pool()
        self._deferred = Deferred(ordered=not self._several_lanes)
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)
        self._left = False
        self._peers = mpi_start.meet(self._mpi, timeout_s)
        self._base = self._duplicate(world, 1)[0]
        self._channel(0)
        atexit.register(self.shutdown)

    def all_reduce(
        self,
        tensors: Sequence[tf.Tensor],
        *,
        reduction: Reduction,
        lane: int,
        label: str,
    ) -> list[tf.Tensor]:
        """Reduces each tensor over the ranks, elementwise; see `Engine.all_reduce`."""
        check_reduction(reduction)
        if not tensors:
            return []
        comm, pool = self._channel(lane), self._pool
        op = {"sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[reduction]

        def transfer(arrays: Sequence[Any]) -> mpi_transfers.Transfer:
            if tensors[0].dtype in (tf.float16, tf.bfloat16):
                return mpi_transfers.half_all_reduce(comm, arrays, _UFUNCS[reduction], pool)
            return mpi_transfers.all_reduce(comm, arrays, op, pool)

        small = [tensor for tensor in tensors if _is_small(tensor)]
        large = [tensor for tensor in tensors if not _is_small(tensor)]
        sent = [pack(small), *large] if small else large
        reduced = iter(self._run(transfer, sent, lane, f"all_reduce of {label}"))
        unpacked = iter(unpack(next(reduced), small) if small else ())
        return [next(unpacked if _is_small(tensor) else reduced) for tensor in tensors]

    def all_gather(self, tensor: tf.Tensor, *, lane: int, label: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks along axis 0; see `Engine.all_gather`."""
        comm, pool = self._channel(lane), self._pool
        shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])

        def transfer(arrays: Sequence[Any]) -> mpi_transfers.Transfer:
            return mpi_transfers.all_gather(comm, arrays[0], pool)

        return self._run(transfer, [tensor], lane, f"all_gather of {label}", [shape])[0]

    def broadcast(
        self, tensors: Sequence[tf.Tensor], *, root_rank: int = 0, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Gives every rank the tensors of `root_rank`; see `Engine.broadcast`."""
        check_root(root_rank, self.size)
        comm, pool = self._channel(lane), self._pool

        def transfer(arrays: Sequence[Any]) -> mpi_transfers.Transfer:
            return mpi_transfers.broadcast(comm, arrays, root_rank, pool)

        return self._run(transfer, tensors, lane, f"broadcast of {label}")

    def barrier(self, label: str) -> None:
        """Waits until every rank is here."""
        self._peers.exchange(None, f"barrier {label}")

    def exchange(self, value: Any, label: str = "exchange") -> list[Any]:
        """Gives every rank the values of all ranks; see `Engine.exchange`."""
        return self._peers.exchange(value, label)

    def shutdown(self) -> None:
        """Leaves, waits for the others, finalizes MPI if the engine started it and all is well."""
        if self._left:
            return
        self._left = True
        unharmed = self._peers.leave(self.timeout_s)
        if unharmed and self._owns_mpi and not self._pending:
            self._mpi.Finalize()

    def _run(
        self,
        transfer: Any,
        tensors: Sequence[tf.Tensor],
        lane: int,
        what: str,
        shapes: Sequence[tf.TensorShape] | None = None,
    ) -> list[tf.Tensor]:
        if not tensors:
            return []
        label = f"{what} (lane {lane})"
        return self._deferred.run(
            lambda arrays: self._start(transfer, arrays, label),
            self._finish,
            tensors,
            shapes or [tensor.shape for tensor in tensors],
            [tensor.dtype for tensor in tensors],
            lane % _MOST_CHANNELS,
        )

    def _start(self, make: Any, arrays: Sequence[Any], label: str) -> int:
        self._peers.raise_if_failed()
        if self._left:
            raise EngineError(f"The mpi engine has been shut down. Received: {label}.")
        transfer = make([np.ascontiguousarray(a).reshape(np.shape(a)) for a in arrays])
        with self._lock:
            self._peers.count += 1
            # Transfers at the same time drive each other out of the cache: the others wait for
            # their turn (twenty 2 MB tensors: 35 against 60 ms).
            requests = [] if self._pending else next(transfer)
            number = next(self._numbers)
            # Also keeps the arrays alive that MPI writes to, should the transfer be given up.
            self._pending[number] = _Pending(transfer, requests, label)
        return number

    def _finish(self, number: int) -> list[Any]:
        transfer, requests, label = self._pending[int(number)]
        since = time.monotonic()
        while True:
            self._wait(requests, label, since)
            try:
                with self._lock:
                    requests = next(transfer)
            except StopIteration as end:
                del self._pending[int(number)]
                return list(end.value)

    def _wait(self, requests: list[Any], label: str, since: float) -> None:
        """Polls: a blocking MPI call could not be given up, and would hold a CPU."""
        began = time.monotonic()
        while not self._test(requests):
            waited = time.monotonic() - began
            self._peers.check(label, since)
            if waited < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(min(waited / 100, _LONGEST_SLEEP_S))

    def _test(self, requests: list[Any]) -> bool:
        if self._several_lanes:
            return bool(self._mpi.Request.Testall(requests))
        with self._lock:
            return bool(self._mpi.Request.Testall(requests))

    def _channel(self, lane: int) -> Any:
        """The communicator of a lane; made while tracing, in the order all ranks share."""
        if not self._several_lanes:
            return self._base
        channel = lane % _MOST_CHANNELS
        with self._lock:
            while channel >= len(self._channels):
                self._channels += self._duplicate(self._base, _CHANNELS_MADE)
            return self._channels[channel]

    def _duplicate(self, comm: Any, number: int) -> list[Any]:
        since = time.monotonic()
        made = [comm.Idup() for _ in range(number)]
        self._wait([request for _, request in made], "new communicators", since)
        return [duplicate for duplicate, _ in made]


def _is_small(tensor: tf.Tensor) -> bool:
    if tf.executing_eagerly():
        return False  # there an op costs more than a call
    elements = tensor.shape.num_elements()
    return elements is not None and elements * tensor.dtype.size < _SMALL_BYTES
