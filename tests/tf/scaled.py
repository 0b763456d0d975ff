# SPDX-License-Identifier: Apache-2.0
"""What the tests of loss-scaled Keras 3 optimizers share: ways to make one, and to look at it."""

import functools

import keras
import numpy as np
import tensorflow as tf

import npu_keras
from npu_keras import ExponentialUpdateLossScaleManager, LossScaleMixin

KINDS = ("NPUOptimizer", "NPULossScaleOptimizer", "mixin")
INF, NAN = float("inf"), float("nan")


def manager(scale=8.0, grow=1000, every=1, ratio=2.0, decr=0.5, **bounds):
    return ExponentialUpdateLossScaleManager(scale, grow, every, ratio, decr, **bounds)


@functools.cache
def mixin_class(base):
    """The loss-scaled class of an optimizer class, known to Keras' saving."""
    cls = type(f"Scaled{base.__name__}", (LossScaleMixin, base), {})
    return keras.saving.register_keras_serializable("npu_keras_tests")(cls)


def make(kind, base=keras.optimizers.SGD, manager=None, mode="inf_nan", **settings):
    """A loss-scaled optimizer of one of the `KINDS` around `base(**settings)`."""
    manager = manager or globals()["manager"]()
    if kind == "mixin":
        return mixin_class(base)(loss_scale_manager=manager, overflow_mode=mode, **settings)
    inner = base(**settings)
    if kind == "NPUOptimizer":
        return npu_keras.NPUOptimizer(inner, manager, is_loss_scale=True, overflow_mode=mode)
    return npu_keras.NPULossScaleOptimizer(inner, manager, overflow_mode=mode)


def sgd(kind="NPULossScaleOptimizer", scale_manager=None, mode="inf_nan", rate=0.1, **settings):
    """Loss-scaled SGD that knows its loss was scaled, so that gradients can be given by hand."""
    optimizer = make(
        kind, keras.optimizers.SGD, scale_manager, mode, learning_rate=rate, **settings
    )
    optimizer.scale_loss(0.0)
    return optimizer


def weight(value=1.0, dtype="float32", name="v"):
    return keras.Variable(np.asarray(value), dtype=dtype, name=name)


def apply(optimizer, variable, *gradients):
    """One step for each unscaled gradient; an inf or NaN makes the step a bad one."""
    for gradient in gradients:
        gradient = np.asarray(gradient, "float32") * np.float32(optimizer.loss_scale)
        optimizer.apply([tf.constant(np.broadcast_to(gradient, variable.shape))], [variable])


def values(variables):
    return [np.array(variable) for variable in variables]


def weights_and_state(model, optimizer):
    return values(model.variables) + values(optimizer.variables)


def assert_bit_equal(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True)


def small_model(policy="float32", units=4):
    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(units, activation="tanh", dtype=policy, name="hidden"),
            keras.layers.Dense(1, dtype=policy, name="out"),
        ]
    )


def data(batches=12, bad=(), size=4, seed=0):
    """Batches of a small regression; in the bad ones an input is infinite."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batches * size, 3)).astype("float32")
    y = (x @ np.float32([[1.0], [-2.0], [0.5]])).astype("float32")
    for batch in bad:
        x[batch * size, 0] = INF
    return x, y


def dataset(batches=12, bad=(), size=4, seed=0):
    x, y = data(batches, bad, size, seed)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True)
