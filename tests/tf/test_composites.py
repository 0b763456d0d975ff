# SPDX-License-Identifier: Apache-2.0
"""Optimizers made of others: `keras.optimizers.MultiOptimizer`, one for each kind of weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import INF, KINDS, make, manager
from test_flavours import assert_bit_equal, batches, fresh_model, good_batches, train, values

import npu_keras

pytestmark = [
    pytest.mark.tf,
    pytest.mark.skipif(
        not hasattr(keras.optimizers, "MultiOptimizer"),
        reason="needs MultiOptimizer, new in Keras 3.15",
    ),
]


def by_kind():
    kernels, biases = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1)
    return lambda variable: kernels if "kernel" in variable.path else biases


def multi(kind, scale_manager):
    return make(kind, keras.optimizers.MultiOptimizer, scale_manager, optimizer_map=by_kind())


@pytest.mark.parametrize("kind", KINDS)
def test_updates_as_without_the_skipped_batches(kind):
    plain_model, model = fresh_model(), fresh_model()
    train(plain_model, keras.optimizers.MultiOptimizer(by_kind()), good_batches())
    optimizer = multi(kind, manager(1024.0, grow=3))
    train(model, optimizer, batches())
    assert_bit_equal(values(model.variables), values(plain_model.variables))
    assert int(optimizer.iterations) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_without_a_gradient_stays_as_it_is(kind):
    used, unused = (keras.Variable([1.0], name=f"bias_{i}") for i in range(2))
    optimizer = multi(kind, manager(8.0))
    optimizer.build([used, unused])
    optimizer.scale_loss(0.0)
    scaled = [tf.constant([2.0 * 8.0]), None]
    with pytest.warns(UserWarning, match="do not exist for variables"):  # so says Keras
        optimizer.apply(scaled, [used, unused])
    optimizer.apply([scaled[0] * INF, None], [used, unused])
    np.testing.assert_allclose([used[0], unused[0]], [0.8, 1.0], rtol=1e-6)
    assert int(optimizer.skipped_steps) == 1


@pytest.mark.parametrize("steps, expected", [(None, [0.8, 0.8]), (2, [1.0, 0.8])])
def test_a_large_update_beside_one_that_is_made_now_and_then(steps, expected):
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
    other = keras.optimizers.SGD(0.1)
    inner = keras.optimizers.MultiOptimizer(lambda v: accumulating if v.name == "a" else other)
    optimizer = npu_keras.NPULossScaleOptimizer(inner, manager(8.0))
    pair = [keras.Variable(np.ones([1024, 1024], "float32"), name=name) for name in "ab"]
    optimizer.build(pair)
    optimizer.scale_loss(0.0)

    @tf.function
    def step(gradient):
        optimizer.apply([gradient, gradient], pair)

    step(tf.fill([1024, 1024], 16.0))
    step(tf.fill([1024, 1024], INF))
    assert [float(v[0, 0]) for v in pair] == pytest.approx(expected, rel=1e-6)
    assert int(optimizer.iterations) == 1
