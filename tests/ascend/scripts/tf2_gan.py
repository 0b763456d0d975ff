# SPDX-License-Identifier: Apache-2.0
"""SGAN and YOLO for TensorFlow 2: two optimizers in one function; sparse gradients."""

import npu_device as npu
import tensorflow as tf
from hccl.manage.api import get_rank_id

wrap = npu.distribute.npu_distributed_keras_optimizer_wrapper
g, d = tf.Variable(1.0), tf.Variable([1.0, 1.0, 1.0])
g_optimizer = wrap(tf.keras.optimizers.SGD(0.5))
d_optimizer = wrap(tf.keras.optimizers.SGD(0.5))
rows = tf.Variable([[1.0], [1.0]])


@tf.function
def train_step(x):
    with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
        g_loss, d_loss = g * x, tf.reduce_sum(tf.gather(d, [0, 2])) * x
    g_optimizer.apply_gradients(zip(g_tape.gradient(g_loss, [g]), [g]))
    d_optimizer.apply_gradients(zip(d_tape.gradient(d_loss, [d]), [d]))


@tf.function
def sparse_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(rows, [1])) * x
    (gradient,) = npu.distribute.all_reduce(tape.gradient(loss, [rows]), "mean")
    rows.assign_sub(tf.convert_to_tensor(gradient))


x = tf.constant(1.0 + 2 * get_rank_id())
train_step(x)
sparse_step(x)
activation = npu.gen_npu_ops.fast_gelu(tf.constant([0.0, 1.0]))
RESULT = float(g), d.numpy().tolist(), rows.numpy().ravel().tolist(), activation.numpy().tolist()
