# SPDX-License-Identifier: Apache-2.0
"""BERT for TensorFlow 2: the scaled optimizer is given to a model that was never compiled."""

import npu_device as npu
import tensorflow as tf

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(1,))]
)
model.optimizer = tf.keras.optimizers.SGD(0.5)
model.optimizer = npu.train.optimizer.NpuLossScaleOptimizer(model.optimizer, dynamic=True)
model.trainable_variables[0].assign([[1.0 + npu.distribute.hccl_ops.allreduce(0.0, "sum")]])
npu.distribute.broadcast(model.trainable_variables, root_rank=0)


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True))
        scaled = model.optimizer.get_scaled_loss(loss)
    grads = tape.gradient(scaled, model.trainable_variables)
    grads = model.optimizer.get_unscaled_gradients(grads)
    grads = npu.distribute.all_reduce(grads)
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables))


train_step(tf.ones([2, 1]))
RESULT = float(model.get_weights()[0].item())
