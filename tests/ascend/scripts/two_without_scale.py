# SPDX-License-Identifier: Apache-2.0
"""DeepCTR: two optimizers with the flag for tails and no loss scale, each with its variables."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

deep = tf.get_variable("deep", initializer=1.0)
wide = tf.get_variable("wide", initializer=[1.0, 1.0, 1.0])
x = tf.placeholder(tf.float32, [])
loss = deep * x + tf.reduce_sum(tf.gather(wide, [2, 2])) * x
opt1 = NPUOptimizer(
    tf.train.GradientDescentOptimizer(0.5), is_distributed=True, is_tailing_optimization=True
)
opt2 = NPUOptimizer(
    tf.train.AdagradOptimizer(0.5, initial_accumulator_value=1e-9),
    is_distributed=True,
    is_tailing_optimization=True,
)
train_op = tf.group(opt1.minimize(loss, var_list=[deep]), opt2.minimize(loss, var_list=[wide]))
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train_op, {x: 1.0 + 2 * get_rank_id()})
    RESULT = [v.tolist() for v in sess.run([deep, wide])]
