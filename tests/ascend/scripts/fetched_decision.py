# SPDX-License-Identifier: Apache-2.0
"""AvatarGAN: one scale and one decision for two networks, both fetched by the names of tensors."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

g, d = tf.get_variable("g", initializer=1.0), tf.get_variable("d", initializer=1.0)
x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
loss_scale_manager = ExponentialUpdateLossScaleManager(
    init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5
)
opt = npu_tf_optimizer(tf.train.GradientDescentOptimizer(0.5))
opt = NPULossScaleOptimizer(opt, loss_scale_manager, is_distributed=get_rank_size() > 1)
g_vars = opt.compute_gradients(g * x, var_list=[g])
d_vars = opt.compute_gradients(d * y, var_list=[d])
train_op = opt.apply_gradients(g_vars + d_vars)
bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
good = 1.0 + 2 * get_rank_id()
lossScale = tf.get_default_graph().get_tensor_by_name("loss_scale:0")
overflow_status_reduce_all = tf.get_default_graph().get_tensor_by_name(
    "overflow_status_reduce_all:0"
)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    seen = []
    for feed in ({x: good, y: bad}, {x: good, y: good}):
        l_s, finite, _ = sess.run([lossScale, overflow_status_reduce_all, train_op], feed)
        seen.append([float(l_s), bool(finite), *[v.item() for v in sess.run([g, d])]])
    RESULT = seen, float(sess.run("loss_scale:0"))
