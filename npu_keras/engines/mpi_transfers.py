# SPDX-License-Identifier: Apache-2.0
"""MPI transfers as generators: each yields the requests it waits for, and returns its arrays.

Nothing here blocks, so that many transfers may be under way on communicators of their own.
"""

import itertools
import math
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Transfer = Generator[list[Any], None, list[Array]]

_ALIGNMENT = 64  # TensorFlow takes over an aligned array without a copy
_KEPT_BYTES = 1 << 30
_BLOCK = 1 << 16  # elements: a float32 block of them stays in cache


class Pool:
    """Result buffers that are used again once TensorFlow has let go of them.

    A fresh 40 MB buffer costs as much as reducing it: its pages must be made first.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, list[Array]] = defaultdict(list)
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Returns an aligned array with arbitrary content."""
        size = math.prod(shape) * dtype.itemsize
        buffer = self._take(size + _ALIGNMENT)
        offset = -buffer.ctypes.data % _ALIGNMENT
        return buffer[offset : offset + size].view(dtype).reshape(shape)

    def _take(self, size: int) -> Array:
        with self._lock:
            for buffer in self._buffers[size]:
                # Three references: the list, this name, the argument. A view adds one.
                if sys.getrefcount(buffer) == 3:
                    return buffer
            fresh = np.empty(size, np.uint8)
            if self._kept_bytes + size <= _KEPT_BYTES:
                self._kept_bytes += size
                self._buffers[size].append(fresh)
            return fresh


def all_reduce(comm: Any, arrays: Sequence[Array], op: Any, pool: Pool) -> Transfer:
    """Reduces each array from where it is, without a copy into a bucket.

    One after the other: together they would drive each other out of the cache.
    """
    results = []
    for array in arrays:
        results.append(pool.empty(array.shape, array.dtype))
        yield [comm.Iallreduce(array, results[-1], op)]
    return results


def half_all_reduce(comm: Any, arrays: Sequence[Array], reduce: np.ufunc, pool: Pool) -> Transfer:
    """Reduces 16-bit floats, for which MPI has no type, as 16 bits on the wire.

    Each rank gets one part of the bucket from every rank, reduces it in float32 and rounds it
    once; the parts are then gathered. This sends as many bytes as the best all-reduce.
    """
    dtype = arrays[0].dtype
    packed, starts = _pack(arrays, dtype, comm.size)
    part = packed.size // comm.size
    received = np.empty((comm.size, part), dtype)
    yield [comm.Ialltoall(packed.view(np.uint16), received.view(np.uint16))]
    mine = _reduce_parts(received, reduce)
    result = pool.empty(packed.shape, dtype)
    yield [comm.Iallgather(mine.view(np.uint16), result.view(np.uint16))]
    return _unpack(result, arrays, starts)


def _reduce_parts(parts: Array, reduce: np.ufunc) -> Array:
    result = np.empty(parts.shape[1], parts.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, result.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            total = parts[0, block].astype(np.float32)
            for part in parts[1:]:
                reduce(total, part[block].astype(np.float32), out=total)
            result[block] = total
    return result


def all_gather(comm: Any, array: Array, pool: Pool) -> Transfer:
    """Concatenates arrays that differ in their first dimension, as bytes."""
    rows = np.empty(comm.size, np.int64)
    yield [comm.Iallgather(np.array([array.shape[0]], np.int64), rows)]
    row_shape = array.shape[1:]
    result = pool.empty((int(rows.sum()), *row_shape), array.dtype)
    counts = [int(n) * math.prod(row_shape) * array.dtype.itemsize for n in rows]
    offsets = [0, *itertools.accumulate(counts[:-1])]
    yield [comm.Iallgatherv(_as_bytes(array), [_as_bytes(result), (counts, offsets)])]
    return [result]


def broadcast(comm: Any, arrays: Sequence[Array], root: int, pool: Pool) -> Transfer:
    """Gives every rank the arrays of `root`, as bytes."""
    results = [pool.empty(array.shape, array.dtype) for array in arrays]
    if comm.rank == root:
        for array, result in zip(arrays, results, strict=True):
            result[...] = array
    yield [comm.Ibcast(_as_bytes(result), root) for result in results]
    return results


def _pack(arrays: Sequence[Array], dtype: np.dtype[Any], parts: int = 1) -> tuple[Array, list[int]]:
    """Copies arrays into one, aligned each, whose length `parts` divides into aligned parts."""
    step = _ALIGNMENT // dtype.itemsize
    starts = [0, *itertools.accumulate(-(-array.size // step) * step for array in arrays)]
    packed = np.zeros(-(-starts[-1] // (step * parts)) * step * parts, dtype)
    for array, start in zip(arrays, starts[:-1], strict=True):
        packed[start : start + array.size] = array.reshape(-1)
    return packed, starts


def _unpack(packed: Array, like: Sequence[Array], starts: Sequence[int]) -> list[Array]:
    return [
        packed[start : start + array.size].reshape(array.shape)
        for array, start in zip(like, starts[:-1], strict=True)
    ]


def _as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
