# SPDX-License-Identifier: Apache-2.0
"""DenseNet and Swin for TensorFlow 2: `compile` and `fit`, sharded data, weights saved."""

import tempfile

import npu_device
import tensorflow as tf
from hccl.split.api import set_split_strategy_by_size
from npu_device.train.optimizer import NpuLossScaleOptimizer

set_split_strategy_by_size([20] * 5)


def make_model():
    return tf.keras.Sequential(
        [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(1,))]
    )


dataset = tf.data.Dataset.from_tensor_slices(([[1.0], [3.0]] * 2, [[0.0]] * 4))
dataset, batch_size = npu_device.distribute.shard_and_rebatch_dataset(dataset, 4)
dataset = dataset.batch(batch_size, drop_remainder=True)
model = make_model()
model.compile(
    optimizer=NpuLossScaleOptimizer(tf.keras.optimizers.SGD(0.25)),
    loss=lambda y_true, y_pred: y_pred,
)
model.fit(dataset, epochs=1, verbose=0)
model.save_weights(tempfile.mkdtemp() + "/weights")
alone = float(model.get_weights()[0].item())

model = make_model()
optimizer = npu_device.distribute.npu_distributed_keras_optimizer_wrapper(
    tf.keras.optimizers.SGD(0.25)
)
model.compile(optimizer=optimizer, loss=lambda y_true, y_pred: y_pred)
npu_device.distribute.broadcast(model.trainable_variables)
model.fit(dataset, epochs=1, verbose=0)
try:
    npu_device.distribute.shard_and_rebatch_dataset(dataset, 5)
    message = ""
except ValueError as error:
    message = str(error)
RESULT = alone, float(model.get_weights()[0].item()), batch_size, message
