# SPDX-License-Identifier: Apache-2.0
"""Tacotron and FaceNet: a fixed scale, large ones too, and no check for overflows."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

RESULT = []
for scale, check in ((2097156, False), (4294967300.0, True)):
    with tf.Graph().as_default(), tf.Session() as sess:
        w, unused = tf.get_variable("w", initializer=1.0), tf.get_variable("u", initializer=1.0)
        x = tf.placeholder(tf.float32, [])
        opt = npu_distributed_optimizer_wrapper(tf.train.GradientDescentOptimizer(0.5))
        loss_scale_manager = FixedLossScaleManager(loss_scale=scale, enable_overflow_check=check)
        opt = NPULossScaleOptimizer(opt, loss_scale_manager, is_distributed=get_rank_size() > 1)
        pairs = [
            (None if g is None else tf.clip_by_norm(tf.clip_by_value(g, -100.0, 100.0), 50.0), v)
            for g, v in opt.compute_gradients(w * x)
        ]
        train_op = opt.apply_gradients(pairs)
        bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
        sess.run(tf.global_variables_initializer())
        for feed in (1.0 + 2 * get_rank_id(), bad):
            sess.run(train_op, {x: feed})
        RESULT.append([float(v) for v in sess.run([w, opt.loss_scale])])
