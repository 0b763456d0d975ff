# SPDX-License-Identifier: Apache-2.0
"""A small model whose steps overflow at will, for the tests of what is logged of them."""

import keras
import numpy as np

import npu_keras

LARGE = 1e36  # times a scale of 2**13 or more beyond float32, by itself not


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred)


def scaled_optimizer(scale=2**15, every=1000, bad=1, **kwargs):
    manager = npu_keras.ExponentialUpdateLossScaleManager(scale, every, bad, 2, 0.5, **kwargs)
    return npu_keras.NPUOptimizer(keras.optimizers.SGD(1e-3), manager, is_loss_scale=True)


def small_model(optimizer=None, **kwargs):
    layers = [keras.layers.Input((2,)), keras.layers.Dense(1, name="dense")]
    model = keras.Sequential(layers, name="net")
    model.compile(optimizer or scaled_optimizer(), loss=mean_output, **kwargs)
    return model


def batches(count, bad=(), value=LARGE):
    """One sample a batch; the numbers of bad batches are counted from 1."""
    x = np.linspace(0.5, 1.5, 2 * count, dtype=np.float32).reshape(count, 2)
    for number in bad:
        x[number - 1] = value
    return x, np.zeros((count, 1), np.float32)


def fit(model, data, logger, epochs=1, **kwargs):
    kwargs = {"batch_size": 1, "shuffle": False, "verbose": 0, "callbacks": [logger]} | kwargs
    return model.fit(*data, epochs=epochs, **kwargs)
