# SPDX-License-Identifier: Apache-2.0
"""A model on saturating arithmetic, which the last rank alone drives to its limit."""

import numpy as np
import tensorflow as tf
from hccl.manage.api import get_rank_id, get_rank_size

import npu_keras.tf_keras
from npu_keras.ascend import saturating

tf.keras.mixed_precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(1,))]
)
optimizer = npu_keras.tf_keras.NPUOptimizer(
    tf.keras.optimizers.SGD(0.5),
    npu_keras.ExponentialUpdateLossScaleManager(2**11, 1000, 1, 2, 0.5),
    is_distributed=True,
    is_loss_scale=True,
    overflow_mode="saturation",
)
model.compile(optimizer, loss=lambda y_true, y_pred: tf.cast(y_pred, tf.float32))
x = np.full((1, 1), 64.0 if get_rank_id() == get_rank_size() - 1 else 1.0)
with saturating(model):
    model.fit(x, x, verbose=0)
tf.keras.mixed_precision.set_global_policy("float32")
RESULT = (
    float(model.get_weights()[0].item()),
    int(optimizer.skipped_steps.numpy()),
    float(optimizer.loss_scale.numpy()),
)
