# SPDX-License-Identifier: Apache-2.0
"""Transformer: a manager class of the script's own, with a ceiling, made from parameters."""

import tensorflow.compat.v1 as tf
from npu_bridge.estimator.npu.npu_loss_scale_manager import ExponentialUpdateLossScaleManager
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer
from npu_bridge.npu_init import get_rank_id, get_rank_size


class DynamicLossScaleManager(ExponentialUpdateLossScaleManager):
    def update_loss_scale(self, finite_grads):
        max_scale = float(2**14)

        def update_if_finite_grads():
            def incr_loss_scale():
                new_loss_scale = tf.minimum(self._loss_scale * self._incr_ratio, max_scale)
                update_op = tf.assign(self._loss_scale, new_loss_scale)
                return tf.group(update_op, self._reset_stats())

            return tf.cond(
                self._num_good_steps + 1 >= self._incr_every_n_steps,
                incr_loss_scale,
                lambda: tf.assign_add(self._num_good_steps, 1).op,
            )

        def update_if_not_finite_grads():
            new_loss_scale = tf.maximum(1.0, self._loss_scale * self._decr_ratio)
            update_op = tf.assign(self._loss_scale, new_loss_scale)
            return tf.group(update_op, self._reset_stats())

        return tf.cond(finite_grads, update_if_finite_grads, update_if_not_finite_grads)


params = {
    "init_loss_scale": 2**13,
    "incr_every_n_steps": 1,
    "decr_every_n_nan_or_inf": 1,
    "incr_ratio": 4,
    "decr_ratio": 0.5,
}
w, x = tf.get_variable("w", initializer=1.0), tf.placeholder(tf.float32, [])
opt = NPUDistributedOptimizer(tf.train.GradientDescentOptimizer(0.25))
loss_scale_manager = DynamicLossScaleManager(**params)
loss_scale = loss_scale_manager.get_loss_scale()
summary = tf.summary.scalar("loss_scale", loss_scale)
opt = NPULossScaleOptimizer(opt, loss_scale_manager, is_distributed=get_rank_size() > 1)
global_step = tf.train.get_or_create_global_step()
gradvars = opt.compute_gradients(w * x, colocate_gradients_with_ops=True)
gradvars = [(tf.clip_by_norm(grad, 100.0), var) for grad, var in gradvars]
train_op = opt.apply_gradients(gradvars, global_step=global_step)
bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
saver = tf.train.Saver()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    scales = []
    for feed in (1.0 + 2 * get_rank_id(), bad, 1.0 + 2 * get_rank_id(), bad):
        scales.append(sess.run([train_op, loss_scale], {x: feed})[1].item())
    scales.append(sess.run("loss_scale:0").item())
    RESULT = scales, [v.item() for v in sess.run([w, global_step])], len(sess.run(summary)) > 0
