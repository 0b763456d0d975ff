# SPDX-License-Identifier: Apache-2.0
"""Hourglass: aggregation around loss scaling, a step behind the updates of statistics."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

w = tf.get_variable("w", initializer=1.0)
mean = tf.get_variable("mean", initializer=0.0, trainable=False)
x = tf.placeholder(tf.float32, [])
tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(mean, 1.0).op)
with tf.device("/cpu:0"), tf.name_scope("rmsprop"):
    loss_scale_manager = ExponentialUpdateLossScaleManager(
        init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2, decr_ratio=0.5
    )
    opt = NPULossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), loss_scale_manager)
opt = npu_tf_optimizer(opt)
step = tf.train.get_or_create_global_step()
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train_op = opt.minimize(w * x, global_step=step)
bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
with tf.Session(config=npu_config_proto()) as sess:
    sess.run(tf.global_variables_initializer())
    for feed in (1.0 + 2 * get_rank_id(), bad):
        sess.run(train_op, {x: feed})
    RESULT = [float(v) for v in sess.run([w, mean, step])]
