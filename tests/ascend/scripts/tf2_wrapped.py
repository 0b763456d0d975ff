# SPDX-License-Identifier: Apache-2.0
"""Transformer for TensorFlow 2: aggregation around loss scaling and inside it; a checkpoint."""

import tempfile
import warnings

import npu_device as npu
import tensorflow as tf
from hccl.manage.api import get_rank_id
from hccl.split.api import set_split_strategy_by_size
from npu_device.train.optimizer import NpuLossScaleOptimizer

set_split_strategy_by_size([50, 25, 25])
wrap = npu.distribute.npu_distributed_keras_optimizer_wrapper
RESULT = []
for make in (
    lambda: wrap(NpuLossScaleOptimizer(tf.keras.optimizers.SGD(0.5))),
    lambda: NpuLossScaleOptimizer(wrap(tf.keras.optimizers.SGD(0.5))),
):
    opt = make()
    w = tf.Variable(1.0)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = opt.get_scaled_loss(w * x)
        grads = opt.get_unscaled_gradients(tape.gradient(loss, [w]))
        opt.apply_gradients(zip(grads, [w]))

    bad = float("inf") if get_rank_id() == npu.distribute.hccl_ops.allreduce(1, "sum") - 1 else 1.0
    for value in (1.0 + 2 * get_rank_id(), bad):
        train_step(tf.constant(value))
    checkpoint = tf.train.Checkpoint(w=w, optimizer=opt)
    path = checkpoint.write(tempfile.mkdtemp() + "/checkpoint")
    opt.loss_scale.assign(1.0)
    checkpoint.read(path)
    RESULT.append([float(w), float(opt.loss_scale), int(opt.iterations), type(opt).__name__])

unscaled = NpuLossScaleOptimizer(tf.keras.optimizers.SGD(0.5))
with tf.GradientTape() as tape:
    loss = w * 1.0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    unscaled.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
RESULT.append(["get_scaled_loss" in str(each.message) for each in caught])
