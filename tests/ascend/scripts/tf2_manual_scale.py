# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 for TensorFlow 2: scaled by a constant, accumulated, reduced; steps counted by hand."""

import npu_device as npu
import tensorflow as tf
from hccl.manage.api import get_rank_id

optimizer = tf.keras.optimizers.legacy.SGD(0.5)
w = tf.Variable(1.0)
accumulated = tf.Variable(0.0, trainable=False)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        scaled_loss = w * x * 512.0
    grads = [g * (1.0 / 512.0) for g in tape.gradient(scaled_loss, [w])]
    accumulated.assign_add(grads[0])

    def apply():
        reduced = npu.distribute.all_reduce([accumulated / 2.0], "mean")
        optimizer.apply_gradients(zip(reduced, [w]))
        accumulated.assign(0.0)

    def wait():
        optimizer.iterations.assign_add(1)

    tf.cond(optimizer.iterations % 2 == 1, apply, wait)


for _ in range(4):
    train_step(tf.constant(1.0 + 2 * get_rank_id()))
RESULT = float(w), int(optimizer.iterations)
