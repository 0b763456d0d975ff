# SPDX-License-Identifier: Apache-2.0
"""WaveGlow: gradients clipped on each rank, then summed by hand; the scale is not saved."""

import tempfile

import tensorflow.compat.v1 as tf
from npu_bridge.hccl import hccl_ops
from npu_bridge.npu_init import *

rank_size = int(get_rank_size())
w = tf.get_variable("w", initializer=1.0)
x = tf.placeholder(tf.float32, [])
loss_scale_manager = ExponentialUpdateLossScaleManager(
    init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5
)
opt = NPULossScaleOptimizer(
    tf.train.GradientDescentOptimizer(0.5), loss_scale_manager, is_distributed=rank_size > 1
)
grads, tvars = zip(*opt.compute_gradients(w * x))
grads, _ = tf.clip_by_global_norm(grads, 10.0)
averaged = [hccl_ops.allreduce(grad, "sum") / rank_size for grad in grads]
train_op = opt.apply_gradients(zip(averaged, tvars))
saver = tf.train.Saver(tf.trainable_variables())
bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for feed in (1.0 + 2 * get_rank_id(), bad):
        sess.run(train_op, {x: feed})
    path = saver.save(sess, tempfile.mkdtemp() + "/model")
    trained = [float(v) for v in sess.run([w, opt.loss_scale])]
    sess.run(tf.global_variables_initializer())
    saver.restore(sess, path)
    RESULT = trained, [float(v) for v in sess.run([w, opt.loss_scale])]
