# SPDX-License-Identifier: Apache-2.0
"""DualGAN: two optimizers, each with its manager, in one session step; and a manager for both."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *


def manager():
    return ExponentialUpdateLossScaleManager(
        init_loss_scale=2**8, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5
    )


g = tf.get_variable("g", initializer=1.0)
d = tf.get_variable("d", initializer=1.0)
x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
g_opt = NPULossScaleOptimizer(
    npu_tf_optimizer(tf.train.GradientDescentOptimizer(0.5)), manager(), is_distributed=True
)
d_opt = NPULossScaleOptimizer(
    npu_tf_optimizer(tf.train.GradientDescentOptimizer(0.5)), manager(), is_distributed=True
)
steps = [g_opt.minimize(g * x, var_list=[g]), d_opt.minimize(d * y, var_list=[d])]
bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(steps, {x: bad, y: 1.0 + 2 * get_rank_id()})
    apart = [float(v) for v in sess.run([g, d, g_opt.loss_scale, d_opt.loss_scale])]
try:
    one = manager()
    pair = [NPULossScaleOptimizer(tf.train.AdamOptimizer(), one) for _ in range(2)]
    shared = "accepted"
except ValueError as error:
    shared = str(error)

both = NPULossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), manager(), True)
pairs = both.compute_gradients(g * x, [g]) + both.compute_gradients(d * y, [d])
together = both.apply_gradients(pairs)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(together, {x: bad, y: 1.0})
    combined = [float(v) for v in sess.run([g, d, both.loss_scale])]
RESULT = apart, shared, combined
