# SPDX-License-Identifier: Apache-2.0
"""A script for TensorFlow 1, which has no `compat.v1` and no eager execution to switch off."""

import json
import os
import sys

import tensorflow as tf
from model import build_loss
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator  # noqa: F401, out of habit
from npu_bridge.npu_init import *

flags = tf.app.flags
flags.DEFINE_integer("steps", 3, "steps to take")
FLAGS = flags.FLAGS
rank_size, rank_id = int(os.getenv("RANK_SIZE")), int(os.environ["RANK_ID"])


def main(_):
    x = tf.placeholder(tf.float32, [None, 2])
    global_step = tf.train.get_or_create_global_step()
    loss_scale_manager = ExponentialUpdateLossScaleManager(
        init_loss_scale=2**4, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1, decr_ratio=0.5
    )
    scale = tf.identity(loss_scale_manager.get_loss_scale())
    opt = npu_tf_optimizer(tf.train.GradientDescentOptimizer(0.5))
    opt = NPULossScaleOptimizer(opt, loss_scale_manager, is_distributed=rank_size > 1)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = opt.minimize(build_loss(x), global_step=global_step)
    config = tf.ConfigProto(allow_soft_placement=True)
    custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
    custom_op.name = "NpuOptimizer"
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    bad = float("inf") if rank_id == rank_size - 1 else 1.0
    fetches = [train_op, "loss_scale:0", "overflow_status_reduce_all:0"]
    with tf.Session(config=config) as sess:
        sess.run(tf.global_variables_initializer())
        seen = []
        for step in range(FLAGS.steps):
            feed = {x: [[bad if step == 1 else 1.0 + 2 * rank_id, 0.0]]}
            seen.append([v.item() for v in sess.run(fetches, feed)[1:]])
        values = sess.run([tf.trainable_variables()[0], global_step, scale])
    result = {
        "argv": sys.argv[1:],
        "weights": values[0].ravel().tolist(),
        "steps": values[1].item(),
        "scale": values[2].item(),
        "seen": seen,
        "device": os.environ["DEVICE_ID"],
    }
    print("RESULT", json.dumps(["tensorflow1", result]))


if __name__ == "__main__":
    tf.app.run()
