# SPDX-License-Identifier: Apache-2.0
"""BERT: one optimizer for all, scale by flag, gradients clipped and accumulated, then applied."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

FLAGS = {"npu_bert_loss_scale": 0, "init_loss_scale_value": 2**16, "accumulate": 2}


def create_optimizer(opt, flags):
    if flags["npu_bert_loss_scale"] not in [None, -1]:
        if flags["npu_bert_loss_scale"] == 0:
            loss_scale_manager = ExponentialUpdateLossScaleManager(
                init_loss_scale=flags["init_loss_scale_value"],
                incr_every_n_steps=1000,
                decr_every_n_nan_or_inf=1,
                decr_ratio=0.5,
            )
        elif flags["npu_bert_loss_scale"] >= 1:
            loss_scale_manager = FixedLossScaleManager(loss_scale=flags["npu_bert_loss_scale"])
        else:
            raise ValueError("Invalid loss scale: %d" % flags["npu_bert_loss_scale"])
        return NPUOptimizer(
            opt,
            loss_scale_manager,
            is_distributed=True,
            is_loss_scale=True,
            is_tailing_optimization=True,
        )
    return NPUOptimizer(opt, is_distributed=True)


w = tf.get_variable("w", initializer=1.0)
x = tf.placeholder(tf.float32, [])
accum = tf.get_variable("accum", initializer=0.0, trainable=False)
local_step = tf.get_variable("local_step", initializer=0, trainable=False)
global_step = tf.train.get_or_create_global_step()
optimizer = create_optimizer(tf.train.GradientDescentOptimizer(0.5), FLAGS)
n = FLAGS["accumulate"]
((grad, _),) = optimizer.compute_gradients(w * x / n, [w])
clipped = tf.clip_by_norm(grad, 1.0)
with tf.control_dependencies([tf.assign_add(local_step, 1), clipped]):
    count, summed = tf.identity(local_step), tf.assign_add(accum, clipped)


def apply():
    with tf.control_dependencies([optimizer.apply_gradients([(summed, w)], global_step)]):
        return tf.group(tf.assign(accum, 0.0))


train_op = tf.cond(tf.equal(count % n, 0), apply, lambda: tf.group(summed))
bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for feed in (1.0, 1.0, 1.0, bad, 1.0, 1.0):
        sess.run(train_op, {x: feed})
    values = sess.run([w, global_step, optimizer.loss_scale, optimizer.good_steps])
others = []
for flag in (1, 1024, None, -1, 0.5):
    try:
        made = create_optimizer(
            tf.train.GradientDescentOptimizer(0.5), FLAGS | {"npu_bert_loss_scale": flag}
        )
        others.append(float(made.initial_scale))
    except ValueError as error:
        others.append(str(error))
RESULT = [float(v) for v in values], others
