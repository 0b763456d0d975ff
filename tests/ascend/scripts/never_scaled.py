# SPDX-License-Identifier: Apache-2.0
"""DELF: `tf.gradients` and `apply_gradients`, so that the wrapper never scales anything."""

import warnings

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

w, unused = tf.get_variable("w", initializer=1.0), tf.get_variable("unused", initializer=1.0)
loss_scale_manager = FixedLossScaleManager(loss_scale=100, enable_overflow_check=False)
opt = NPULossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), loss_scale_manager)
grads = tf.gradients(w * 2.0, [w, unused])
grads, _ = tf.clip_by_global_norm(grads, 1.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    train_op = opt.apply_gradients(zip(grads, [w, unused]))
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train_op)
    RESULT = float(sess.run(w)), [str(each.message) for each in caught]
