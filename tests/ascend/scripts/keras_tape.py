# SPDX-License-Identifier: Apache-2.0
"""FixMatch: a Keras optimizer with a schedule in a loop of the script's own, and a checkpoint."""

import tempfile

import tensorflow as tf
from npu_bridge.npu_init import *

schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
optimizer = npu_keras_optimizer(tf.keras.optimizers.SGD(schedule))
w = tf.Variable(1.0)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = w * x
    optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w]))


rates = []
for _ in range(2):
    rates.append(float(optimizer.learning_rate(optimizer.iterations)))
    train_step(tf.constant(1.0 + 2 * get_rank_id()))
checkpoint = tf.train.Checkpoint(w=w, optimizer=optimizer)
path = checkpoint.write(tempfile.mkdtemp() + "/checkpoint")
train_step(tf.constant(1.0))
checkpoint.read(path)
RESULT = float(w), int(optimizer.iterations), rates
