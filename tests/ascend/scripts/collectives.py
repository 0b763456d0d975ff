# SPDX-License-Identifier: Apache-2.0
"""The operations of `hccl_ops`, and reductions of lists, of None and of rows."""

import tensorflow as tf
from hccl.manage.api import get_rank_id, get_rank_size
from npu_bridge.hccl import hccl_ops
from npu_bridge.npu_init import npu_allreduce
from npu_device.distribute import all_reduce

rank, size = get_rank_id(), get_rank_size()
x = tf.constant([1 + rank, 2 + rank])
v = tf.Variable(1.0)
with tf.GradientTape() as tape:
    y = hccl_ops.allreduce(v * (1.0 + rank), "sum")
slope = tape.gradient(y, v)  # of the sum over ranks of y: each rank's own factor times size
row = tf.IndexedSlices(tf.constant([[5.0]]), tf.constant([rank]), tf.constant([2, 1]))
RESULT = (
    rank,
    hccl_ops.allgather(x, size).numpy().tolist(),
    hccl_ops.allreduce(x, "prod").numpy().tolist(),
    hccl_ops.reduce(x, "max", 0).numpy().tolist(),
    hccl_ops.broadcast([x], 0)[0].numpy().tolist(),
    hccl_ops.reduce_scatter(x, "sum", size).numpy().tolist(),
    float(slope) / (1.0 + rank),
    tf.convert_to_tensor(all_reduce(row)).numpy().tolist(),
    [None if v is None else float(v) for v in npu_allreduce([None, tf.constant(2.0 + 2 * rank)])],
)
