# SPDX-License-Identifier: Apache-2.0
"""The transfers of the MPI engine, between ranks that are generators in one process."""

import ml_dtypes
import numpy as np
import pytest

from npu_keras.engines import mpi_transfers


class Comm:
    """One rank of a communicator; calls are carried out once all ranks have made them."""

    def __init__(self, rank, size):
        self.rank, self.size, self.calls = rank, size, []

    def Iallreduce(self, send, receive, op):
        self.calls.append((op, send, receive))

    def Ialltoall(self, send, receive):
        self.calls.append(("all to all", send, receive))

    def Iallgather(self, send, receive):
        self.calls.append(("all gather", send, receive))


def carry_out(comms):
    while any(comm.calls for comm in comms):
        calls = [comm.calls.pop(0) for comm in comms]
        sent = [send.copy() for _, send, _ in calls]
        for rank, (kind, _, receive) in enumerate(calls):
            if kind == "all to all":
                parts = [array.reshape(len(comms), -1)[rank] for array in sent]
                receive.reshape(-1)[:] = np.concatenate(parts)
            elif kind == "all gather":
                receive.reshape(-1)[:] = np.concatenate([array.reshape(-1) for array in sent])
            else:
                receive[...] = kind.reduce(sent)


def run(transfers, comms):
    results = [None] * len(comms)
    while None in results:
        for rank, transfer in enumerate(transfers):
            try:
                next(transfer)
            except StopIteration as end:
                results[rank] = end.value
        carry_out(comms)
    return results


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_half_floats_are_rounded_once(dtype, size):
    rng = np.random.default_rng(size)
    shapes = [(3,), (), (0, 2), (70_001,), (4, 33)]
    arrays = [[rng.normal(size=s).astype(dtype) for s in shapes] for _ in range(size)]
    comms = [Comm(rank, size) for rank in range(size)]
    pool = mpi_transfers.Pool()
    transfers = [
        mpi_transfers.half_all_reduce(comm, own, np.add, pool)
        for comm, own in zip(comms, arrays, strict=True)
    ]
    for results in run(transfers, comms):
        for position, result in enumerate(results):
            expected = arrays[0][position].astype(np.float32)
            for own in arrays[1:]:
                expected = expected + own[position].astype(np.float32)
            np.testing.assert_array_equal(result, expected.astype(dtype))
            assert result.shape == shapes[position]
            assert result.ctypes.data % 64 == 0


def test_a_rounding_at_every_rank_would_differ():
    values = [np.float16(2048), np.float16(1), np.float16(1)]
    assert (values[0] + values[1]) + values[2] == 2048
    parts = np.array(values).reshape(3, 1)
    assert mpi_transfers._reduce_parts(parts, np.add)[0] == 2050


def test_arrays_travel_from_where_they_are_one_after_the_other():
    comms = [Comm(rank, 2) for rank in range(2)]
    arrays = [[np.full(s, rank + 1.0) for s in [(3,), (), (10, 30)]] for rank in range(2)]
    pool = mpi_transfers.Pool()
    transfers = [
        mpi_transfers.all_reduce(comm, own, np.add, pool)
        for comm, own in zip(comms, arrays, strict=True)
    ]
    for position in range(3):
        for transfer in transfers:
            next(transfer)
        [(_, sent, _)] = comms[0].calls
        assert sent is arrays[0][position]
        carry_out(comms)
    for transfer in transfers:
        with pytest.raises(StopIteration) as end:
            next(transfer)
        for result, array in zip(end.value.value, arrays[0], strict=True):
            np.testing.assert_array_equal(result, np.full(array.shape, 3.0))


def test_a_buffer_is_used_again_once_nobody_holds_it():
    pool = mpi_transfers.Pool()
    first = pool.empty((100,), np.dtype(np.float32))
    second = pool.empty((100,), np.dtype(np.float32))
    place = first.ctypes.data
    assert second.ctypes.data != place
    view = first[10:20]
    del first
    assert pool.empty((100,), np.dtype(np.float32)).ctypes.data not in (place, second.ctypes.data)
    del view
    assert pool.empty((100,), np.dtype(np.float32)).ctypes.data == place
    assert place % 64 == 0
