# SPDX-License-Identifier: Apache-2.0
"""The models of the comparisons, and one step of their training."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import npu_keras

BATCH = 32
CLASSES = 10
VOCABULARY, LENGTH, WIDTH = 8192, 64, 192


def perceptron() -> keras.Model:
    """Returns a perceptron of 9.46 million parameters, 38 MB of gradients in 8 tensors."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(2048, "relu") for _ in range(3)]
    return keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(CLASSES)])


def eight_layers() -> keras.Model:
    """Returns a model of eight variables of 4 MB."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(1024, "relu", use_bias=False) for _ in range(8)]
    return keras.Sequential([keras.Input((1024,)), *layers])


def deep(layers: int = 200) -> keras.Model:
    """Returns a model of many small variables, two for each layer of 32 units."""
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(32, "relu") for _ in range(layers - 1)]
    return keras.Sequential([keras.Input((32,)), *hidden, keras.layers.Dense(CLASSES)])


def transformer(blocks: int = 4) -> keras.Model:
    """Returns an encoder of 3.4 million parameters with a sparse embedding of 1.6 million."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(tokens)
    for _ in range(blocks):
        attended = keras.layers.MultiHeadAttention(4, WIDTH // 4)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(4 * WIDTH, "gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(WIDTH)(hidden))
    return keras.Model(tokens, keras.layers.Dense(CLASSES)(x[:, 0]))


def wide(millions: int) -> keras.Model:
    """Returns a perceptron of about so many million parameters."""
    keras.utils.set_random_seed(0)
    units = round((millions * 1e6) ** 0.5)
    hidden = [keras.layers.Dense(units), keras.layers.Dense(units)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(CLASSES)])


class Bank(keras.layers.Layer):
    """A product with the sum of many variables.

    Args:
        variables: how many there are.
    """

    def __init__(self, variables: int) -> None:
        super().__init__()
        self._number = variables

    def build(self, input_shape: Any) -> None:
        """Makes the variables, each as wide as the inputs."""
        self._bank = [self.add_weight(shape=(input_shape[-1],)) for _ in range(self._number)]

    def call(self, inputs: Any) -> Any:
        """Multiplies inputs, of shape `(batch, width)`, by the sum."""
        rows = keras.ops.reshape(keras.ops.concatenate(self._bank), (self._number, -1))
        return inputs * keras.ops.sum(rows, axis=0)


def bank(variables: int) -> keras.Model:
    """Returns a model that holds so many variables of 32 numbers, and is otherwise small."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((32,)), Bank(variables - 2), keras.layers.Dense(CLASSES)])


def batch_of(model: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    """Returns one batch of inputs and labels that fits a model."""
    rng = np.random.default_rng(0)
    shape = (BATCH, *model.input_shape[1:])
    whole = rng.integers(0, VOCABULARY, shape)
    x = whole if model.inputs[0].dtype == "int32" else rng.standard_normal(shape).astype("float32")
    return x, rng.integers(0, CLASSES, BATCH)


def scaled(inner: Any) -> Any:
    """Returns the optimizer with a loss scale that settles at once."""
    manager = npu_keras.ExponentialUpdateLossScaleManager(2.0**15, 2000)
    return npu_keras.NPUOptimizer(inner, manager, is_loss_scale=True)


def wrapped(inner: Any) -> Any:
    """Returns the optimizer in Keras' own wrapper."""
    return keras.optimizers.LossScaleOptimizer(inner)


def compiled(optimizer: Any, model: keras.Model, **settings: Any) -> keras.Model:
    """Returns the model, compiled with an optimizer."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **{"jit_compile": False, **settings})
    return model


def stepper(
    optimizer: Any, make: Callable[[], keras.Model] = perceptron, *, jit_compile: bool = False
) -> Callable[[], None]:
    """Returns a function that takes one step, the one that `fit` takes.

    Args:
        optimizer: of the model.
        make: makes the model.
        jit_compile: whether XLA compiles the step.
    """
    model = compiled(optimizer, make(), jit_compile=jit_compile)
    optimizer.build(model.trainable_variables)
    model.make_train_function()
    batches: Iterator[Any] = iter(tf.data.Dataset.from_tensors(batch_of(model)).repeat())
    return lambda: model.train_function(batches)


def fits(optimizer: Any, *, steps: int, steps_per_execution: int = 1) -> Callable[..., None]:
    """Returns a function of callbacks that fits the perceptron for `steps` steps.

    Args:
        optimizer: of the model.
        steps: how many steps an epoch has.
        steps_per_execution: how many steps TensorFlow takes at once.
    """
    model = compiled(optimizer, perceptron(), steps_per_execution=steps_per_execution)
    x, y = (np.concatenate([part] * steps) for part in batch_of(model))

    def fit(*callbacks: Any) -> None:
        settings = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
        model.fit(x, y, callbacks=list(callbacks), **settings)

    return fit
