# SPDX-License-Identifier: Apache-2.0
"""GNMT and Transformer: no, dynamic or fixed scale by a number; the scale goes to a summary."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *


def wrap(optimizer, npu_loss_scale, params):
    optimizer = NPUDistributedOptimizer(optimizer)
    if npu_loss_scale < 1:
        return optimizer, None
    if npu_loss_scale == 1:
        loss_scale_manager = ExponentialUpdateLossScaleManager(**params)
    else:
        loss_scale_manager = FixedLossScaleManager(loss_scale=npu_loss_scale)
    if get_rank_size() > 1:
        return NPULossScaleOptimizer(optimizer, loss_scale_manager, True), loss_scale_manager
    return NPULossScaleOptimizer(optimizer, loss_scale_manager), loss_scale_manager


RESULT = []
for number in (0, 1, 512):
    with tf.Graph().as_default(), tf.Session() as sess:
        w, x = tf.get_variable("w", initializer=1.0), tf.placeholder(tf.float32, [])
        opt, loss_scale_manager = wrap(
            tf.train.GradientDescentOptimizer(0.5),
            number,
            {
                "init_loss_scale": 2**10,
                "incr_every_n_steps": 1,
                "decr_every_n_nan_or_inf": 1,
                "incr_ratio": 4,
                "decr_ratio": 0.5,
            },
        )
        train_op = opt.minimize(w * x)
        scale = 0.0
        if loss_scale_manager is not None:
            tf.summary.scalar("loss_scale", loss_scale_manager.get_loss_scale())
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, {x: 1.0 + 2 * get_rank_id()})
        if loss_scale_manager is not None:
            scale = sess.run(loss_scale_manager.get_loss_scale())
        RESULT.append([float(sess.run(w)), float(scale)])
