# SPDX-License-Identifier: Apache-2.0
"""PixelLink: the loss is scaled by hand, then once more by the optimizer."""

import warnings

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

w = tf.get_variable("w", initializer=1.0)
loss_scale_manager = ExponentialUpdateLossScaleManager(
    init_loss_scale=2**4, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2, decr_ratio=0.5
)
opt = NPUOptimizer(
    tf.train.GradientDescentOptimizer(0.5),
    loss_scale_manager,
    is_distributed=False,
    is_loss_scale=True,
)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pairs = opt.compute_gradients(w * 1.0 * loss_scale_manager.get_loss_scale())
train_op = opt.apply_gradients(pairs)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train_op)
    RESULT = [str(each.message) for each in caught], float(sess.run(w))
