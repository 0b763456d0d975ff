# SPDX-License-Identifier: Apache-2.0
"""Mask R-CNN: an optimizer class of the script's own inside, which asks for the base class."""

import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *


class MixedPrecisionOptimizer(tf.train.Optimizer):
    def __init__(self, optimizer, scale=None, name="MixedPrecisionOptimizer", use_locking=False):
        super().__init__(use_locking, name)
        self._optimizer, self._scale = optimizer, float(scale) if scale is not None else 1.0

    def compute_gradients(self, loss, var_list=None, *args, **kwargs):
        pairs = self._optimizer.compute_gradients(loss * self._scale, var_list, *args, **kwargs)
        return [(None if g is None else g / self._scale, v) for g, v in pairs]

    def apply_gradients(self, *args, **kwargs):
        return self._optimizer.apply_gradients(*args, **kwargs)


def make(dynamic):
    opt = tf.train.MomentumOptimizer(0.5, 0.0)
    if not dynamic:
        return NPUDistributedOptimizer(MixedPrecisionOptimizer(opt, scale=256.0))
    manager = ExponentialUpdateLossScaleManager(
        init_loss_scale=65536, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5
    )
    return NPUOptimizer(
        MixedPrecisionOptimizer(opt, scale=1.0),
        manager,
        is_distributed=True,
        is_loss_scale=True,
        is_tailing_optimization=False,
    )


RESULT = []
for dynamic in (True, False):
    with tf.Graph().as_default(), tf.Session() as sess:
        w, x = tf.get_variable("w", initializer=1.0), tf.placeholder(tf.float32, [])
        step = tf.train.get_or_create_global_step()
        train_op = make(dynamic).minimize(w * x, global_step=step)
        bad = float("inf") if get_rank_id() == get_rank_size() - 1 else 1.0
        sess.run(tf.global_variables_initializer())
        for feed in (1.0 + 2 * get_rank_id(), *([bad] if dynamic else [])):
            sess.run(train_op, {x: feed})
        RESULT.append([float(v) for v in sess.run([w, step])])
