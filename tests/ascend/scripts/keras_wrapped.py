# SPDX-License-Identifier: Apache-2.0
"""3D ResNet and OpenPose: Keras optimizers that aggregate, in `compile`, with callbacks."""

import numpy as np
import tensorflow as tf
from npu_bridge.npu_init import *

x = np.ones((4, 1), np.float32)[: 4 // get_rank_size()] * (1.0 + 2 * get_rank_id())
RESULT = []
for make in (
    lambda: npu_distributed_optimizer_wrapper(tf.keras.optimizers.SGD(learning_rate=0.5)),
    lambda: KerasDistributeOptimizer(tf.keras.optimizers.SGD(learning_rate=0.5)),
):
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(1,))]
    )
    model.compile(optimizer=make(), loss=lambda y_true, y_pred: y_pred)
    callbacks = [
        NPUBroadcastGlobalVariablesCallback(0),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.5),
    ]
    model.fit(x, x, batch_size=len(x), epochs=1, verbose=0, callbacks=callbacks)
    RESULT.append(float(model.get_weights()[0].item()))
RESULT.append(type(npu_distributed_optimizer_wrapper("sgd").inner_optimizer).__name__)
