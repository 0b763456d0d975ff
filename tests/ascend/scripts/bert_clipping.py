# SPDX-License-Identifier: Apache-2.0
"""BERT: loss scaling around aggregation; clipping of each gradient and of all, some None."""

import tensorflow.compat.v1 as tf
from npu_bridge.estimator.npu.npu_loss_scale_manager import ExponentialUpdateLossScaleManager
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer
from npu_bridge.npu_init import get_rank_id, get_rank_size

w = tf.get_variable("w", initializer=[1.0, 1.0])
unused = tf.get_variable("unused", initializer=5.0)
x = tf.placeholder(tf.float32, [])
global_step = tf.train.get_or_create_global_step()
opt = NPUDistributedOptimizer(tf.train.GradientDescentOptimizer(0.5))
manager = ExponentialUpdateLossScaleManager(
    init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2, decr_ratio=0.5
)
opt = NPULossScaleOptimizer(opt, manager, is_distributed=get_rank_size() > 1)
grads_and_vars = opt.compute_gradients(w[0] * x * 3.0 + w[1] * x * 4.0)
grads, tvars = zip(*grads_and_vars)
grads = [None if g is None else tf.clip_by_norm(g, 1e6) for g in grads]
grads, _ = tf.clip_by_global_norm(grads, 1.0)
train_op = opt.apply_gradients(zip(grads, tvars), global_step=global_step)
bad = float("nan") if get_rank_id() == get_rank_size() - 1 else 1.0
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    seen = []
    for feed in (1.0, bad, bad, 1.0):
        sess.run(train_op, {x: feed})
        seen.append(sess.run("overflow_status_reduce_all:0", {x: feed}).item())
    weights, step, scale = sess.run([w, global_step, opt.loss_scale])
RESULT = weights.tolist(), int(step), float(scale)
