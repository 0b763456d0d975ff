# SPDX-License-Identifier: Apache-2.0
"""The start of an MPI world: what it can do, who is here, and where rank 0 listens."""

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from npu_keras import cluster
from npu_keras.engines import wire
from npu_keras.engines.base import EngineError, EngineTimeout
from npu_keras.engines.peers import Peers

_LOG = logging.getLogger("npu_keras")
_TAG = 7103
_NAME_BYTES = 256
_ADDRESS_BYTES = 2048


def check_launcher(rank: int, size: int) -> None:
    """Raises an EngineError if MPI and the environment disagree on who this process is."""
    place = cluster.find()
    if place.source == "mpi" and (place.rank, place.size) != (rank, size):
        raise EngineError(
            f"Expected MPI to say rank {place.rank} of {place.size}, as its environment does. "
            f"Received: rank {rank} of {size}. The `mpiexec` that started this process belongs to "
            "another MPI than the library found; use the one of this environment."
        )


def allows_many_threads(mpi: Any) -> bool:
    """Whether threads may call MPI at the same time; logs a warning if not.

    Raises:
        EngineError: if only one thread may call it at all.
    """
    level = mpi.Query_thread()
    if level < mpi.THREAD_SERIALIZED:
        raise EngineError(
            "Expected an MPI that may be called from several threads. Received: thread level "
            f"{level}. Make the engine before importing mpi4py, or leave mpi4py.rc.thread_level."
        )
    if level < mpi.THREAD_MULTIPLE:
        _LOG.warning(
            "This MPI has no MPI_THREAD_MULTIPLE: buckets travel one after the other in one "
            "order, and overlap less with the backward pass."
        )
    return bool(level == mpi.THREAD_MULTIPLE)


def meet(mpi: Any, timeout_s: float) -> Peers:
    """Gathers all ranks at rank 0, which tells them where it listens.

    Every message is between rank 0 and one other rank, so that it is known who is missing.

    Args:
        mpi: the module `mpi4py.MPI`.
        timeout_s: float, the longest wait, in seconds.

    Raises:
        EngineTimeout: names the ranks that did not start; raised on every rank.
    """
    world = mpi.COMM_WORLD
    if world.rank:
        return _visit(mpi, timeout_s)
    names = np.zeros((world.size, _NAME_BYTES), np.uint8)
    names[0] = _padded(mpi.Get_processor_name(), _NAME_BYTES)
    requests = [world.Irecv(names[rank], rank, _TAG) for rank in range(1, world.size)]
    absent = [rank + 1 for rank in _incomplete(requests, timeout_s)]
    here = [rank for rank in range(1, world.size) if rank not in absent]

    def share(text: str) -> str:
        message = _padded(text, _ADDRESS_BYTES)
        sends = [world.Isend(message, rank, _TAG) for rank in here]
        _incomplete(sends, timeout_s)
        return text

    if absent:
        text = f"Rank {absent} did not start the engine within {timeout_s:g} s."
        share(json.dumps(text))
        raise EngineTimeout(text)
    one_host = bool((names == names[0]).all())
    hosts = ["127.0.0.1"] if one_host else wire.own_addresses()
    return Peers(world.rank, world.size, timeout_s, share, hosts)


def _visit(mpi: Any, timeout_s: float) -> Peers:
    world = mpi.COMM_WORLD
    message = np.zeros(_ADDRESS_BYTES, np.uint8)
    name = _padded(mpi.Get_processor_name(), _NAME_BYTES)
    requests = [world.Isend(name, 0, _TAG), world.Irecv(message, 0, _TAG)]
    # Rank 0 may wait the whole time-out for another rank before it answers.
    if _incomplete(requests, timeout_s + 5.0):
        raise EngineTimeout(f"Rank [0] did not start the engine within {timeout_s:g} s.")
    text = message.tobytes().rstrip(b"\0").decode()
    if isinstance(json.loads(text), str):
        raise EngineTimeout(json.loads(text))
    return Peers(world.rank, world.size, timeout_s, lambda _: text, [])


def _padded(text: str, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    content = np.frombuffer(text.encode(), np.uint8)
    return np.pad(content, (0, size - content.size))


def _incomplete(requests: Sequence[Any], timeout_s: float) -> list[int]:
    """Waits; returns the positions of the requests that did not complete in time."""
    deadline = time.monotonic() + timeout_s
    waiting = dict(enumerate(requests))
    while waiting and time.monotonic() < deadline:
        waiting = {i: request for i, request in waiting.items() if not request.Test()}
        time.sleep(0.001)
    return list(waiting)
