# SPDX-License-Identifier: Apache-2.0
"""AvatarGAN: the decision is fetched by the name of its tensor."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

w, x = tf.get_variable("w", initializer=1.0), tf.placeholder(tf.float32, [])
loss_scale_manager = ExponentialUpdateLossScaleManager(
    init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5
)
opt = NPULossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), loss_scale_manager)
train_op = opt.minimize(w * x)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    finite = sess.run(["overflow_status_reduce_all:0", train_op], {x: float("inf")})[0]
    RESULT = float(sess.run(loss_scale_manager.get_loss_scale())), bool(finite)
