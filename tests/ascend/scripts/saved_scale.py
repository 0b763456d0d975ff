# SPDX-License-Identifier: Apache-2.0
"""Coltran: the scale is logged at each step, saved and restored; large scales."""

import tempfile

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

w, x = tf.get_variable("w", initializer=1.0), tf.placeholder(tf.float32, [])
loss_scale_manager = ExponentialUpdateLossScaleManager(
    init_loss_scale=2**32, incr_every_n_steps=2, decr_every_n_nan_or_inf=2, decr_ratio=0.5
)
opt = NPULossScaleOptimizer(
    NPUDistributedOptimizer(tf.train.GradientDescentOptimizer(0.0)), loss_scale_manager, True
)
train_op = opt.minimize(w * x)
saver = tf.train.Saver(tf.global_variables())
log = []
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for feed in (float("inf"), 1.0, float("inf"), 1.0, 1.0, 1.0, float("inf")):
        log.append(float(sess.run([train_op, loss_scale_manager.get_loss_scale()], {x: feed})[1]))
    path = saver.save(sess, tempfile.mkdtemp() + "/model")
    before = [float(v) for v in sess.run([opt.loss_scale, opt.good_steps, opt.bad_steps])]
    sess.run(tf.global_variables_initializer())
    saver.restore(sess, path)
    after = [float(v) for v in sess.run([opt.loss_scale, opt.good_steps, opt.bad_steps])]

tops = []
for power in (64, 127):
    with tf.Graph().as_default(), tf.Session() as sess:
        w = tf.get_variable("w", initializer=1.0)
        manager = ExponentialUpdateLossScaleManager(
            init_loss_scale=2.0**power, incr_every_n_steps=1
        )
        top = NPULossScaleOptimizer(tf.train.GradientDescentOptimizer(0.0), manager)
        op = top.minimize(w * 1e-3)
        sess.run(tf.global_variables_initializer())
        sess.run(op)
        tops.append(float(sess.run(top.loss_scale)))
with tf.Graph().as_default(), tf.Session() as sess:
    w = tf.get_variable("w", initializer=1.0)
    manager = ExponentialUpdateLossScaleManager(
        init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2, decr_ratio=0.5
    )
    half = NPULossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), manager)
    op = half.minimize(tf.cast(tf.cast(w, tf.float16), tf.float32))
    sess.run(tf.global_variables_initializer())
    skipped = 0
    while sess.run(w) == 1.0:
        sess.run(op)
        skipped += 1
    tops.append([skipped - 1, float(sess.run(half.loss_scale))])
names = sorted(v.op.name for v in tf.global_variables() if v.op.name.startswith("loss"))
RESULT = log[0], before, after, tops, names
