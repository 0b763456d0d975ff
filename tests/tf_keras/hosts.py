# SPDX-License-Identifier: Apache-2.0
"""What the tests of tf_keras optimizers share: every way to make a loss-scaled one."""

import functools

import numpy as np
import tf_keras

from npu_keras import ExponentialUpdateLossScaleManager
from npu_keras import tf_keras as npu

LEGACY = tf_keras.optimizers.legacy
INF = float("inf")


def manager(scale=1024.0, grow=3):
    return ExponentialUpdateLossScaleManager(scale, grow, 1, 2, 0.5)


@functools.cache
def mixin_class(base):
    name = f"Scaled{'Legacy' if issubclass(base, LEGACY.Optimizer) else ''}{base.__name__}"
    cls = type(name, (npu.LossScaleMixin, base), {})
    return tf_keras.saving.register_keras_serializable("npu_keras_tests")(cls)


def _wrapped(base, **settings):
    return npu.NPUOptimizer(base(**settings), manager(), is_loss_scale=True)


def _mixed(base, **settings):
    return mixin_class(base)(loss_scale_manager=manager(), **settings)


def _nested(base, **settings):
    return npu.NPULossScaleOptimizer(npu.NPUDistributedOptimizer(base(**settings)), manager())


def _nested_outside(base, **settings):
    return npu.NPUDistributedOptimizer(npu.NPULossScaleOptimizer(base(**settings), manager()))


MAKERS = {
    "wrapper": lambda name, **settings: _wrapped(getattr(tf_keras.optimizers, name), **settings),
    "legacy wrapper": lambda name, **settings: _wrapped(getattr(LEGACY, name), **settings),
    "mixin": lambda name, **settings: _mixed(getattr(tf_keras.optimizers, name), **settings),
    "legacy mixin": lambda name, **settings: _mixed(getattr(LEGACY, name), **settings),
    "scaling outside": lambda name, **settings: _nested(
        getattr(tf_keras.optimizers, name), **settings
    ),
    "scaling inside": lambda name, **settings: _nested_outside(getattr(LEGACY, name), **settings),
}
"""Function of the name of an optimizer class and its settings, by kind of construction."""


def small_model():
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [layers.Dense(4, "tanh", input_shape=(3,)), layers.Dense(1, dtype="float32")]
    )


def data(batches=8, bad=(), size=4):
    """Batches of a small regression; in the bad ones an input is infinite."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batches * size, 3)).astype("float32")
    y = x @ np.float32([[1.0], [-2.0], [0.5]])
    for batch in bad:
        x[batch * size + size - 1] = INF
    return x, y


def values(optimizer):
    variables = optimizer.variables
    return {v.name: v.numpy() for v in (variables() if callable(variables) else variables)}


def events(optimizer):
    return [(e.attempt, e.kind, e.rank) for e in optimizer.journal.drain()]


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def fit(model, optimizer=None, bad=(), **settings):
    if optimizer is not None:
        model.compile(optimizer, "mse", run_eagerly=False)
    x, y = data(bad=bad)
    return model.fit(x, y, batch_size=4, shuffle=False, verbose=0, **settings)


def module_of(kind):
    """Where the optimizer that does the updating comes from."""
    legacy = isinstance(MAKERS[kind]("SGD")._updating_optimizer(), LEGACY.Optimizer)
    return LEGACY if legacy else tf_keras.optimizers
