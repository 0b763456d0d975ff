# SPDX-License-Identifier: Apache-2.0
"""The same small model in Keras 3 and in tf_keras, each with an optimizer of its flavour."""

import importlib
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

import npu_keras

HOSTS = ("keras", "tf_keras")


class Host(NamedTuple):
    """A library of models, and the module with the optimizers for it."""

    keras: object
    flavour: object


def host(name):
    flavour = npu_keras if name == "keras" else importlib.import_module("npu_keras.tf_keras")
    return Host(importlib.import_module(name), flavour)


def manager(scale=2.0**15, every=1000, bad=1, ratio=0.5, **bounds):
    return npu_keras.ExponentialUpdateLossScaleManager(scale, every, bad, 2, ratio, **bounds)


def optimizer(name="keras", scale_manager=None, rate=0.0):
    library, flavour = host(name)
    inner = library.optimizers.SGD(rate)
    return flavour.NPUOptimizer(inner, scale_manager or manager(), is_loss_scale=True)


def model(name="keras", scale_manager=None, rate=0.0, **settings):
    """Two inputs, normalised, and one output, whose mean is the loss."""
    layers = host(name).keras.layers
    first = keras.Input((2,)) if name == "keras" else layers.InputLayer((2,))
    made = host(name).keras.Sequential(
        [first, layers.BatchNormalization(name="norm"), layers.Dense(1, name="dense")], name="net"
    )
    made.compile(optimizer(name, scale_manager, rate), loss=mean_output, **settings)
    return made


def mean_output(y_true, y_pred):
    return tf.reduce_mean(y_pred)


def batches(count, bad=(), value=np.nan):
    """One sample a batch; the numbers of bad batches are counted from 1."""
    x = np.linspace(0.5, 1.5, 2 * count, dtype=np.float32).reshape(count, 2)
    for number in bad:
        x[number - 1] = value
    return x, np.zeros((count, 1), np.float32)


def fit(model, data, *callbacks, epochs=1, **kwargs):
    kwargs = {"batch_size": 1, "shuffle": False, "verbose": 0} | kwargs
    return model.fit(*data, epochs=epochs, callbacks=list(callbacks), **kwargs)
