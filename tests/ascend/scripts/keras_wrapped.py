# SPDX-License-Identifier: Apache-2.0
"""3D ResNet and OpenPose: Keras optimizers that aggregate, in `compile`, with callbacks."""

import tempfile

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
    path = f"{tempfile.mkdtemp()}/model.ckpt-{{epoch:04d}}"
    callbacks = [
        NPUBroadcastGlobalVariablesCallback(0),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.5),
        tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
    ]
    model.fit(x, x, batch_size=len(x), epochs=1, verbose=0, callbacks=callbacks)
    model.set_weights([np.full((1, 1), 7.0)])
    model.load_weights(path.format(epoch=1))
    RESULT.append(float(model.get_weights()[0].item()))
RESULT.append(type(npu_distributed_optimizer_wrapper("sgd").inner_optimizer).__name__)
