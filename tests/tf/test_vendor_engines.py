# SPDX-License-Identifier: Apache-2.0
"""The engines of Horovod and Ascend against stand-ins made from their documentation.

A stand-in is one rank of two; what the other rank sends is computed from what this one sends.
"""

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from npu_keras.engines.hccl import HcclEngine
from npu_keras.engines.horovod import HorovodEngine

OPS = {"sum": tf.add, "max": tf.maximum, "min": tf.minimum}


def other(tensor):
    """The tensor of rank 1: 10 more than that of rank 0, for whatever it is reduced with."""
    return tensor + tf.cast(10, tensor.dtype)


class Horovod(types.ModuleType):
    Sum, Max, Min = "sum", "max", "min"

    def __init__(self):
        super().__init__("horovod.tensorflow")
        self.names = []

    def is_initialized(self):
        return True

    def rank(self):
        return 0

    def size(self):
        return 2

    def allreduce(self, tensor, op=None, name=None):
        self.names.append(name)
        return OPS[op](tensor, other(tensor))

    def allgather(self, tensor, name=None):
        self.names.append(name)
        return tf.concat([tensor, tensor[:1]], 0)  # the other rank has one row

    def broadcast(self, tensor, root_rank, name=None):
        self.names.append(name)
        return other(tensor) if root_rank == 1 else tensor

    def allgather_object(self, obj, name=None):
        return [obj, "other"]


class Hccl(types.ModuleType):
    """`npu_device.distribute.hccl_ops`: equal shapes, reductions by name, lists to broadcast."""

    def __init__(self):
        super().__init__("npu_device.distribute.hccl_ops")
        self.calls = []
        self.rows = []

    def allreduce(self, tensor, reduction, fusion=1, fusion_id=-1, group="hccl_world_group"):
        assert not isinstance(tensor, tf.Variable)
        self.calls.append(("allreduce", tensor.shape[0], fusion))
        return OPS[reduction](tensor, other(tensor))

    def allgather(self, tensor, rank_size, group="hccl_world_group"):
        assert rank_size == 2
        self.calls.append(("allgather", tensor.shape[0], None))
        if tensor.dtype == tf.int32 and tensor.shape == [1] and not self.rows:
            self.rows = [int(tensor[0]), 1]
            return tf.constant(self.rows)
        own, others = self.rows
        self.rows = []
        padding = tf.zeros_like(tensor[others:])
        return tf.concat([tensor, tensor[:others], padding], 0)

    def broadcast(self, tensor_list, root_rank, fusion=2, fusion_id=0, group="hccl_world_group"):
        assert isinstance(tensor_list, list)
        assert fusion in (0, 2)
        return [other(tensor) if root_rank == 1 else tensor for tensor in tensor_list]


@pytest.fixture
def horovod(monkeypatch):
    module = Horovod()
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", module)
    return module


@pytest.fixture
def hccl(monkeypatch):
    module = Hccl()
    for name in ("npu_device", "npu_device.distribute"):
        parent = types.ModuleType(name)
        parent.__spec__ = types.SimpleNamespace(name=name)
        monkeypatch.setitem(sys.modules, name, parent)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("RANK_ID", "0")
    monkeypatch.setenv("RANK_SIZE", "2")
    return module


@pytest.fixture(params=["horovod", "hccl"])
def engine(request):
    request.getfixturevalue(request.param)
    return {"horovod": HorovodEngine, "hccl": HcclEngine}[request.param](timeout_s=1.0)


def test_rank_and_size_come_from_the_vendor(engine):
    assert (engine.rank, engine.size, engine.timeout_s) == (0, 2, 1.0)
    assert "xla" not in engine.capabilities


@pytest.mark.parametrize(
    "reduction, expected", [("sum", [12.0, 14.0]), ("max", [11.0, 12.0]), ("min", [1.0, 2.0])]
)
def test_all_reduce(engine, reduction, expected):
    tensors = [tf.constant([1.0, 2.0]), tf.constant([[1.0], [2.0]]), tf.constant(1.0)]

    def call(tensors):
        return engine.all_reduce(tensors, reduction=reduction, lane=3, label="a, b")

    for results in (call(tensors), tf.function(call, autograph=False)(tensors)):
        assert results[0].numpy().tolist() == expected
        assert results[1].numpy().ravel().tolist() == expected
        assert results[2].numpy() == expected[0]
    with pytest.raises(ValueError, match="mean"):
        engine.all_reduce(tensors, reduction="mean", lane=0, label="x")


def test_all_gather_of_unequal_rows(engine):
    result = engine.all_gather(tf.constant([[1, 2], [3, 4], [5, 6]]), lane=0, label="rows")
    assert result.numpy().tolist() == [[1, 2], [3, 4], [5, 6], [1, 2]]


@pytest.mark.parametrize("root_rank, expected", [(0, [1, 2]), (1, [11, 12])])
def test_broadcast(engine, root_rank, expected):
    results = engine.broadcast(
        [tf.constant([1, 2]), tf.constant(1.0)], root_rank=root_rank, lane=0, label="w"
    )
    assert results[0].numpy().tolist() == expected
    assert results[1].numpy() == expected[0]
    with pytest.raises(ValueError, match="root_rank=2"):
        engine.broadcast([], root_rank=2, lane=0, label="w")


def test_horovod_gets_a_name_for_every_tensor(horovod):
    engine = HorovodEngine()
    engine.all_reduce([tf.ones(1), tf.ones(1)], reduction="sum", lane=2, label="dense/kernel, b")
    engine.all_gather(tf.ones([1, 1]), lane=1, label="rows")
    assert horovod.names == [
        "npu_keras.all_reduce.2.dense_kernel_b.0",
        "npu_keras.all_reduce.2.dense_kernel_b.1",
        "npu_keras.all_gather.1.rows.0",
    ]
    assert engine.exchange([1]) == [[1], "other"]


def test_hccl_gets_one_unfused_tensor_for_a_bucket(hccl):
    engine = HcclEngine()
    engine.all_reduce([tf.ones([2, 3]), tf.ones(4)], reduction="sum", lane=0, label="x")
    assert hccl.calls == [("allreduce", 10, 0)]
    assert engine.all_reduce([], reduction="sum", lane=0, label="x") == []


def test_hccl_exchanges_lines_of_bytes(hccl, monkeypatch):
    engine = HcclEngine()
    sent = []

    def all_gather(tensor, *, lane, label):
        sent.append(tensor)
        return tf.concat([tensor, tf.constant(np.frombuffer(b'{"b": 2}\n', np.int8))], 0)

    monkeypatch.setattr(engine, "all_gather", all_gather)
    assert engine.exchange({"a": "é"}) == [{"a": "é"}, {"b": 2}]
    assert sent[0].dtype == tf.int8
