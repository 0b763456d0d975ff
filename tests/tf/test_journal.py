# SPDX-License-Identifier: Apache-2.0
"""The journal: which step, which scale, which variable; and how it is read."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import INF, KINDS, NAN, apply, make, manager, sgd, weight

from npu_keras import Event
from npu_keras.journal import read
from npu_keras.state import RING_ROWS


@pytest.mark.parametrize("kind", KINDS)
def test_events_of_a_run(kind):
    optimizer, variable = sgd(kind, manager(8.0, grow=2, every=2)), weight(1.0, name="w")
    apply(optimizer, variable, 1.0, INF, NAN, 1.0, 1.0)
    assert optimizer.journal.drain() == [
        Event(2, "skip", 8.0, 8.0, 1, "w", infs=1, bad_steps=1),
        Event(3, "back off", 8.0, 4.0, 1, "w", nans=1, bad_steps=2),
        Event(5, "grow", 4.0, 8.0),
    ]
    assert [event.skipped for event in optimizer.journal.drain()] == []
    apply(optimizer, variable, INF)
    assert [event.attempt for event in optimizer.journal.drain()] == [6]
    snapshot = optimizer.journal.snapshot()
    assert snapshot._asdict() == {
        "loss_scale": 8.0,
        "good_steps": 0,
        "bad_steps": 1,
        "attempted_steps": 6,
        "skipped_steps": 3,
        "scale_growths": 1,
        "scale_backoffs": 1,
    }


@pytest.mark.parametrize("kind, compiled", [*((kind, False) for kind in KINDS), (KINDS[0], True)])
def test_the_variable_that_overflowed(kind, compiled):
    model = keras.Sequential(
        [keras.layers.Input((2,)), *(keras.layers.Dense(2, name=f"layer{i}") for i in range(3))]
    )
    optimizer = make(kind, learning_rate=0.1)
    optimizer.build(model.trainable_variables)
    optimizer.scale_loss(0.0)
    paths = [variable.path for variable in model.trainable_variables]
    assert paths[2].endswith("layer1/kernel")
    gradients = [np.ones(v.shape, "float32") for v in model.trainable_variables]
    gradients[2][:] = [[INF, -INF], [NAN, 1.0]]

    @tf.function(jit_compile=compiled)
    def step(*gradients):
        optimizer.apply(list(gradients), model.trainable_variables)

    step(*map(tf.constant, gradients))
    (event,) = optimizer.journal.drain()
    assert (event.bad_variables, event.variable) == (1, paths[2])
    assert (event.infs, event.nans, event.forward, event.rank) == (2, 1, False, None)
    gradients[5][:] = NAN
    step(*map(tf.constant, gradients))
    (event,) = optimizer.journal.drain()
    assert (event.bad_variables, event.variable, event.nans) == (2, paths[2], 3)
    counts = dict.fromkeys(paths, 0) | {paths[2]: 2, paths[5]: 1}
    assert optimizer.journal.overflows_by_variable() == counts


def test_a_loss_that_is_infinite_itself():
    optimizer, variable = sgd(scale_manager=manager(4.0)), weight(1.0)
    optimizer.build([variable])

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(variable.value * factor)
        optimizer.apply([tape.gradient(loss, variable.value)], [variable])

    step(tf.constant(INF))
    # Finite as a loss, and overflowing only once it is scaled.
    step(tf.constant(3e38))
    for _ in range(10):
        step(tf.constant(INF))
    forward = [event.forward for event in optimizer.journal.drain()]
    assert forward[:3] == [True, False, True]
    # The floor bounds what a forward overflow can do to the scale.
    assert float(optimizer.loss_scale) == 1.0
    assert optimizer.journal.snapshot().scale_backoffs == 2
    assert float(variable) == 1.0


def test_a_finite_double_beyond_float32_is_no_forward_overflow():
    optimizer, variable = sgd(), weight(1.0)
    optimizer.scale_loss(tf.constant(1e300, tf.float64))
    apply(optimizer, variable, INF)
    assert optimizer.journal.drain()[0].forward is False


def test_one_bad_loss_of_several():
    optimizer, variable = sgd(), weight(1.0)
    for loss in (1.0, INF, 2.0):
        optimizer.scale_loss(loss)
    apply(optimizer, variable, INF)
    optimizer.scale_loss(1.0)
    apply(optimizer, variable, INF)
    assert [event.forward for event in optimizer.journal.drain()] == [True, False]


def test_more_events_than_are_kept():
    optimizer, variable = sgd(scale_manager=manager(1.0)), weight(1.0)
    optimizer.build([variable])
    late = optimizer.journal.reader()

    @tf.function
    def skip_all(count):
        for _ in tf.range(count):
            optimizer.apply([tf.constant(INF)], [variable])

    skip_all(tf.constant(RING_ROWS + 10))
    events = optimizer.journal.drain()
    assert len(events) == RING_ROWS
    assert [events[0].attempt, events[-1].attempt] == [11, RING_ROWS + 10]
    assert optimizer.journal.lost == 10
    assert (len(late.drain()), late.lost) == (RING_ROWS, 10)
    assert optimizer.journal.reader().drain() == []


def test_reading_variables_of_every_home():
    assert read(tf.Variable(3)) == read(keras.Variable(3, dtype="int32")) == 3


def test_before_the_first_step():
    optimizer = make("NPUOptimizer", learning_rate=0.1)
    assert optimizer.journal.drain() == []
    assert optimizer.journal.overflows_by_variable() == {}
    assert optimizer.journal.snapshot().attempted_steps == 0
    assert optimizer.journal.lost == 0


def test_gradient_penalty_of_a_critic():
    """The inner gradient of a WGAN-GP loss is not scaled; the outer one is, and comes out right."""

    def penalty_step(optimizer, dtype):
        keras.utils.set_random_seed(6)
        critic = keras.Sequential(
            [
                keras.layers.Input((2,)),
                keras.layers.Dense(8, activation="tanh", dtype=dtype),
                keras.layers.Dense(1, dtype=dtype),
            ]
        )
        x = tf.constant([[0.5, -1.0], [1.5, 0.25]])
        optimizer.build(critic.trainable_variables)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = tf.cast(critic(x), tf.float32)
            slope = tf.norm(tf.cast(inner.gradient(score, x), tf.float32), axis=1)
            loss = optimizer.scale_loss(tf.reduce_mean(score) + tf.reduce_mean((slope - 1) ** 2))
        gradients = outer.gradient(loss, critic.trainable_variables)
        pairs = zip(gradients, critic.trainable_variables, strict=True)
        optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])
        return critic.trainable_variables

    ours = penalty_step(sgd(scale_manager=manager(2.0**10), rate=0.5), "mixed_float16")
    plain = penalty_step(keras.optimizers.SGD(0.5), "float32")
    for half, single in zip(ours, plain, strict=True):
        np.testing.assert_allclose(half, single, rtol=1e-2, atol=2e-3)
