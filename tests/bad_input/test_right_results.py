# SPDX-License-Identifier: Apache-2.0
"""Unusual input that is right: odd variables, empty and many ones, models used in turns."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from rows import manager, one, scaled, sgd, tf_keras_scaled, v1_scaled, variable, weight

import npu_keras
from npu_keras import NPULossScaleOptimizer

pytestmark = pytest.mark.tf

INF = float("inf")


def legacy():
    return tf_keras_scaled(tf_keras.optimizers.legacy.SGD)


FLAVOURS = {
    "keras": (scaled, weight),
    "tf_keras": (tf_keras_scaled, variable),
    "legacy": (legacy, variable),
    "v1": (v1_scaled, variable),
}


@pytest.fixture(params=FLAVOURS)
def flavour(request):
    return FLAVOURS[request.param]


def step(optimizer, gradients, variables):
    """One step with gradients of the unscaled loss."""
    if hasattr(optimizer, "apply"):
        scaled_by_8 = [None if g is None else g * tf.cast(8, g.dtype) for g in gradients]
        optimizer.apply(scaled_by_8, variables)
    else:
        optimizer._scaling.scaled_a_loss = True  # no warning of gradients from elsewhere
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return int(optimizer.attempted_steps), int(optimizer.skipped_steps)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64"])
def test_variables_of_every_dtype_that_has_gradients(flavour, dtype):
    make, new = flavour
    optimizer, trained = make(), new(3, dtype)
    assert step(optimizer, [tf.cast(one(1.0), dtype)], [trained]) == (1, 0)
    assert complex(tf.cast(trained, "complex64").numpy()) == 2.5  # 3 less half of 1
    assert step(optimizer, [tf.cast(one(INF), dtype)], [trained]) == (2, 1)
    assert complex(tf.cast(trained, "complex64").numpy()) == 2.5


def test_an_integer_without_a_gradient_stands_beside_one_that_has_one(flavour):
    make, new = flavour
    number, trained = new(3, "int32"), new(3.0)
    step(make(), [None, one(1.0)], [number, trained])
    assert (int(number.numpy()), float(trained.numpy())) == (3, 2.5)


def test_variables_without_elements(flavour):
    make, new = flavour
    empty, trained = new(np.ones((0, 3))), new(3.0)
    assert step(make(), [tf.zeros([0, 3])], [new(np.ones((0, 3)))]) == (1, 0)
    assert step(make(), [tf.zeros([0, 3]), one(1.0)], [empty, trained]) == (1, 0)
    assert float(trained.numpy()) == 2.5


def test_no_rows_of_a_sparse_gradient():
    rows = tf.IndexedSlices(tf.zeros([0, 3]), tf.zeros([0], tf.int32), tf.constant([4, 3]))
    optimizer, trained = scaled(), weight(np.ones((4, 3)))
    optimizer.apply([rows], [trained])
    assert (np.array(trained) == 1).all()


@pytest.mark.parametrize("gradient", [8.0, np.float32(8), np.float64(8), 8])
def test_numbers_are_gradients_too(gradient):
    for make, new in (FLAVOURS["keras"], FLAVOURS["tf_keras"]):
        optimizer, trained = make(), new(3.0)
        optimizer.apply([gradient], [trained])
        assert float(trained.numpy()) == 2.5


def test_one_variable_given_twice_is_updated_twice():
    optimizer, trained = scaled(), weight(3.0)
    optimizer.apply([one(), one()], [trained, trained])
    assert float(trained.numpy()) == 2.0


def test_some_of_the_variables_it_was_built_with():
    optimizer, first, second = scaled(), weight(3.0), weight(3.0)
    optimizer.build([first, second])
    optimizer.build([first, second])  # once more changes nothing
    optimizer.apply([one()], [second])
    assert (float(first.numpy()), float(second.numpy())) == (3.0, 2.5)


@pytest.mark.parametrize("loss", [2, 2.0, np.float16(2), tf.constant(2), tf.cast(2, "bfloat16")])
def test_losses_of_every_real_dtype(loss):
    result = scaled().scale_loss(loss)
    assert (float(result), result.dtype) == (16.0, tf.float32)
    assert tf_keras_scaled().get_scaled_loss(lambda: loss)() == 16.0


def dense(units=1):
    return keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(units, name="d")])


X, Y = np.ones((2, 2), "float32"), np.ones((2, 1), "float32")


def test_one_optimizer_for_two_models_is_refused_by_the_second():
    optimizer = NPULossScaleOptimizer(sgd(), manager())
    first, second = dense(), dense()
    first.compile(optimizer, "mse", run_eagerly=True)
    first.fit(X, Y, verbose=0)
    second.compile(optimizer, "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="Unknown variable"):
        second.fit(X, Y, verbose=0)
    first.fit(X, Y, verbose=0)  # goes on as if nothing had been
    assert int(optimizer.attempted_steps) == 2


def test_layers_that_are_frozen_between_compiles_keep_their_slots():
    layers = [keras.layers.Dense(2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input([2]), *layers])
    optimizer = NPULossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), manager())
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(X, Y, verbose=0)
    frozen, slot = model.layers[0], np.array(optimizer.inner_optimizer.momentums[0])
    frozen.trainable = False
    before = np.array(frozen.kernel)
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(X, Y, verbose=0)
    assert (np.array(frozen.kernel) == before).all()
    assert (np.array(optimizer.inner_optimizer.momentums[0]) == slot).all()
    frozen.trainable = True
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(X, Y, verbose=0)
    assert (np.array(frozen.kernel) != before).any()
    assert int(optimizer.attempted_steps) == 3


def test_layers_thawed_after_the_first_step_need_a_new_optimizer():
    model = dense()
    model.layers[0].trainable = False
    optimizer, head = scaled(), weight()
    optimizer.apply([one()], [head])
    model.layers[0].trainable = True
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([one(), None], [head, model.layers[0].kernel])


def test_more_than_a_thousand_variables():
    many = [weight(3.0) for _ in range(1200)]
    optimizer = scaled()
    gradients = [tf.constant(8.0)] * 1199 + [tf.constant(INF)]
    optimizer.apply(gradients, many)
    assert (int(optimizer.skipped_steps), float(many[0].numpy())) == (1, 3.0)
    (event,) = optimizer.journal.drain()
    assert (event.bad_variables, event.variable) == (1, many[-1].path)


def test_flags_may_be_the_numbers_of_a_command_line():
    optimizer = npu_keras.NPUOptimizer(sgd(), manager(), 0, 1, np.bool_(False))
    assert (optimizer.is_distributed, optimizer.is_loss_scale) == (False, True)
