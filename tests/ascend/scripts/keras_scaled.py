# SPDX-License-Identifier: Apache-2.0
"""U-Net: loss scaling around aggregation in `compile`, and the other way round; callbacks."""

import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

is_distributed = int(get_rank_size()) > 1


def manager():
    return ExponentialUpdateLossScaleManager(
        init_loss_scale=2**32, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2, decr_ratio=0.8
    )


def inside():
    opt = NPUDistributedOptimizer(tf.train.GradientDescentOptimizer(0.5))
    return NPULossScaleOptimizer(opt, manager(), is_distributed=is_distributed)


def outside():
    opt = tf.train.GradientDescentOptimizer(0.5)
    opt = NPULossScaleOptimizer(opt, manager(), is_distributed=is_distributed)
    return npu_tf_optimizer(opt)


RESULT = []
for make in (inside, outside):
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(1,))]
    )
    model.compile(optimizer=make(), loss="mse")
    x = np.ones((2, 1), np.float32) * [[1.0 + get_rank_id()]]
    path = f"{tempfile.mkdtemp()}/weights"
    history = model.fit(
        x,
        np.zeros((2, 1)),
        batch_size=2,
        epochs=2,
        verbose=0,
        callbacks=npu_callbacks_append(
            (
                tf.keras.callbacks.History(),
                tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
            )
        ),
    )
    trained = model.get_weights()
    model.set_weights([np.zeros_like(trained[0])])
    model.load_weights(path)
    RESULT.append([len(history.history["loss"]), float(model.get_weights()[0].ravel()[0])])
