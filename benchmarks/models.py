# SPDX-License-Identifier: Apache-2.0
"""The model of the comparisons: a perceptron of 9.46 million parameters, 38 MB of gradients."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import npu_keras

BATCH = 32


def perceptron() -> keras.Model:
    """Returns a new model with the same weights every time."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(2048, "relu") for _ in range(3)]
    return keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(10)])


def scaled(inner: Any) -> Any:
    """Returns the optimizer with a loss scale that settles at once."""
    manager = npu_keras.ExponentialUpdateLossScaleManager(2.0**15, 2000)
    return npu_keras.NPUOptimizer(inner, manager, is_loss_scale=True)


def fits(optimizer: Any, *, steps: int, steps_per_execution: int = 1) -> Callable[..., None]:
    """Returns a function of callbacks that fits the model for `steps` steps.

    Args:
        optimizer: of the model.
        steps: how many steps an epoch has.
        steps_per_execution: how many steps TensorFlow takes at once.
    """
    model = perceptron()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False, steps_per_execution=steps_per_execution)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps * BATCH, 512)).astype("float32")
    y = rng.integers(0, 10, steps * BATCH)

    def fit(*callbacks: Any) -> None:
        settings = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
        model.fit(x, y, callbacks=list(callbacks), **settings)

    return fit
