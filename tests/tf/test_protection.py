# SPDX-License-Identifier: Apache-2.0
"""`protect` puts back what the forward pass of a skipped step has written."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import INF, KINDS, apply, data, make, manager, sgd, values, weight


def test_a_variable_written_before_the_step():
    count, variable = tf.Variable(0.0), weight(1.0)
    optimizer = sgd()
    assert optimizer.protect([count]) is True
    for gradient, expected in ((1.0, 1.0), (INF, 1.0), (1.0, 2.0), (INF, 2.0), (INF, 2.0)):
        count.assign_add(1.0)
        apply(optimizer, variable, gradient)
        assert float(count) == expected


def test_registering_again_takes_the_present_value():
    count, optimizer, variable = tf.Variable(5), sgd(), weight(1.0)
    optimizer.protect([count])
    count.assign(0)
    assert optimizer.protect([count]) is False
    count.assign(7)
    apply(optimizer, variable, INF)
    assert int(count) == 0


def test_keras_variables_and_other_dtypes():
    flags = keras.Variable([True, False], dtype="bool", trainable=False)
    seed = keras.random.SeedGenerator(3)
    optimizer, variable = sgd(), weight(1.0)
    optimizer.protect([flags, seed.state])
    before = seed.state.numpy()
    flags.assign([False, False])
    seed.next()
    apply(optimizer, variable, INF)
    assert flags.numpy().tolist() == [True, False]
    np.testing.assert_array_equal(seed.state.numpy(), before)


def test_what_is_no_variable():
    with pytest.raises(TypeError, match=r"model\.non_trainable_variables.*Received one of int: 3"):
        sgd().protect([3])


def test_compiled_by_xla():
    count, variable, optimizer = tf.Variable(0.0), weight(1.0), sgd()
    optimizer.build([variable])
    optimizer.protect([count])

    @tf.function(jit_compile=True)
    def step(gradient):
        count.assign_add(1.0)
        optimizer.apply([gradient], [variable])

    seen = []
    for gradient in (1.0, INF, 1.0):
        step(tf.constant(gradient))
        seen.append(float(count))
    assert seen == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("kind", KINDS[::2])
def test_batch_normalisation(kind):
    """As if the bad batch had never been there."""

    def fit(x, y, protect):
        keras.utils.set_random_seed(4)
        model = keras.Sequential(
            [
                keras.layers.Input((3,)),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.25, seed=1),
                keras.layers.Dense(1),
            ]
        )
        optimizer = make(kind, manager=manager(64.0), learning_rate=0.1)
        model.compile(optimizer, loss="mse", jit_compile=False)
        if protect:
            optimizer.protect(model.non_trainable_variables)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return model

    x, y = data(6, bad=(2, 4))
    keep = np.repeat([True, True, False, True, False, True], 4)
    model, clean = fit(x, y, protect=True), fit(x[keep], y[keep], protect=False)
    assert int(model.optimizer.skipped_steps) == 2
    for ours, expected in zip(values(model.variables), values(clean.variables), strict=True):
        np.testing.assert_array_equal(ours, expected)
    unprotected = fit(x, y, protect=False)
    assert not np.isfinite(unprotected.layers[0].moving_mean.numpy()).all()
