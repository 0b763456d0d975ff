# SPDX-License-Identifier: Apache-2.0
"""Wrappers and mixins take the same steps, those of the plain optimizer on the good batches alone.

A loss scale that is a power of two changes no bit of a gradient, so every comparison is exact.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import (
    INF,
    KINDS,
    assert_bit_equal,
    data,
    make,
    manager,
    small_model,
    values,
)

from npu_keras import NPULossScaleOptimizer

BAD = (2, 3, 8)
schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [0.1, 0.03, 0.01])
INNER = {
    "sgd": (keras.optimizers.SGD, {"learning_rate": 0.1}),
    "sgd-schedule": (keras.optimizers.SGD, {"learning_rate": schedule, "momentum": 0.9}),
    "sgd-clipnorm": (keras.optimizers.SGD, {"learning_rate": 0.1, "clipnorm": 0.01}),
    "sgd-clipvalue": (keras.optimizers.SGD, {"learning_rate": 0.1, "clipvalue": 0.01}),
    "adam-global_clipnorm": (
        keras.optimizers.Adam,
        {"learning_rate": 0.1, "global_clipnorm": 0.01},
    ),
    "adamw": (keras.optimizers.AdamW, {"learning_rate": 0.1, "weight_decay": 0.1}),
    "adam-ema": (
        keras.optimizers.Adam,
        {
            "learning_rate": 0.1,
            "use_ema": True,
            "ema_momentum": 0.5,
            "ema_overwrite_frequency": 3,
        },
    ),
    "adam-amsgrad": (keras.optimizers.Adam, {"learning_rate": 0.1, "amsgrad": True}),
    "adam-accumulation": (
        keras.optimizers.Adam,
        {"learning_rate": 0.1, "gradient_accumulation_steps": 2},
    ),
    "rmsprop": (keras.optimizers.RMSprop, {"learning_rate": 0.01, "centered": True}),
    "lamb": (keras.optimizers.Lamb, {"learning_rate": 0.01}),
    "lion": (keras.optimizers.Lion, {"learning_rate": 0.01}),
}
if tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 13):  # 3.12's own Muon fails
    INNER["muon"] = (keras.optimizers.Muon, {"learning_rate": 0.01})


def train(model, optimizer, batches):
    """A tape loop over (x, y) pairs in a `tf.function`."""
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x, training=True) - y) ** 2))
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply(gradients, variables)

    for x, y in batches:
        step(tf.constant(x), tf.constant(y))
    assert step.experimental_get_tracing_count() == 1


def batches(count=12, bad=BAD):
    x, y = data(count, bad)
    return list(zip(np.split(x, count), np.split(y, count), strict=True))


def good_batches(count=12, bad=BAD):
    return [pair for number, pair in enumerate(batches(count, bad)) if number not in bad]


def fresh_model():
    keras.utils.set_random_seed(1)
    return small_model()


def slots(optimizer, kind):
    """The variables of the optimizer that does the updating."""
    if kind == "mixin":
        state = {id(variable) for _, variable in optimizer._scaling.state}
        return values(v for v in optimizer.variables if id(v) not in state)
    return values(optimizer.inner_optimizer.variables)


@functools.cache
def plain_run(inner):
    base, settings = INNER[inner]
    model, optimizer = fresh_model(), base(**settings)
    train(model, optimizer, good_batches())
    return model, optimizer


# Every kind with every inner optimizer would take minutes: one inner one sees all kinds.
PAIRS = [("adam-ema", kind) for kind in KINDS]
PAIRS += [(inner, KINDS[i % 3]) for i, inner in enumerate(INNER) if (inner, KINDS[0]) not in PAIRS]


@pytest.mark.parametrize("inner, kind", PAIRS)
def test_skipped_steps_leave_no_trace(inner, kind):
    base, settings = INNER[inner]
    plain_model, plain = plain_run(inner)
    model, optimizer = fresh_model(), make(kind, base, manager(1024.0, grow=3), **settings)
    train(model, optimizer, batches())

    assert_bit_equal(values(model.variables), values(plain_model.variables))
    assert_bit_equal(slots(optimizer, kind), values(plain.variables))
    assert int(optimizer.iterations) == int(plain.iterations)
    assert float(optimizer.learning_rate) == float(plain.learning_rate)
    assert int(optimizer.skipped_steps) == 3
    assert int(optimizer.attempted_steps) == 12
    # 2 good, 2 bad, 4 good (one growth), 1 bad, 3 good (one growth).
    assert float(optimizer.loss_scale) == 1024.0 / 4 * 2 / 2 * 2


@pytest.mark.parametrize("kind", KINDS)
def test_excluded_from_weight_decay(kind):
    settings = {"learning_rate": 0.1, "weight_decay": 0.5}
    models = fresh_model(), fresh_model()
    optimizers = (
        keras.optimizers.AdamW(**settings),
        make(kind, keras.optimizers.AdamW, manager(64.0), **settings),
    )
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        train(model, optimizer, good_batches())
    assert_bit_equal(values(models[0].variables), values(models[1].variables))
    decayed = fresh_model()
    train(decayed, keras.optimizers.AdamW(**settings), good_batches())
    bias = decayed.layers[0].bias.numpy()
    assert not np.array_equal(bias, models[1].layers[0].bias.numpy())


FIT_MODES = {
    "graph": {"jit_compile": False},
    "auto": {"jit_compile": "auto"},
    "xla": {"jit_compile": True},
    "eager": {"run_eagerly": True},
    "four-at-a-time": {"jit_compile": False, "steps_per_execution": 4},
}


@pytest.mark.parametrize(
    "mode, kind",
    [(mode, "NPUOptimizer") for mode in FIT_MODES]
    + [("graph", "NPULossScaleOptimizer"), ("graph", "mixin"), ("xla", "mixin")],
)
def test_fit(mode, kind):
    x, y = data(12, BAD)
    model, optimizer = (
        fresh_model(),
        make(kind, keras.optimizers.Adam, manager(1024.0, grow=3), learning_rate=0.1),
    )
    model.compile(optimizer, loss="mse", **FIT_MODES[mode])
    model.fit(x, y, batch_size=4, shuffle=False, epochs=2, verbose=0)

    plain_model, plain = fresh_model(), keras.optimizers.Adam(0.1)
    # Eagerly in both or in neither: on some CPUs a graph adds up a product in another order.
    plain_model.compile(plain, loss="mse", jit_compile=False, run_eagerly=mode == "eager")
    good = [np.concatenate(part) for part in zip(*good_batches(), strict=True)]
    plain_model.fit(*good, batch_size=4, shuffle=False, epochs=2, verbose=0)

    exact = "xla" not in mode
    for ours, theirs in zip(model.variables, plain_model.variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0 if exact else 1e-4)
    assert model.optimizer is optimizer
    assert int(optimizer.iterations) == 18
    assert int(optimizer.skipped_steps) == 6
    skipped = [event.attempt for event in optimizer.journal.drain() if event.skipped]
    assert skipped == [3, 4, 9, 15, 16, 21]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_custom_train_step(kind, wrap):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            return self.dense(x)

        def train_step(self, pair):
            x, y = pair
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model, optimizer = Model(), make(kind, manager=manager(2.0**14), learning_rate=0.1)
    model.compile(optimizer, run_eagerly=wrap is not tf.function)
    model.fit(np.ones((4, 1), "float32"), np.zeros((4, 1), "float32"), batch_size=4, verbose=0)
    # w = 1, x = 1, y = 0: both gradients are 2.
    assert float(model.dense.kernel[0, 0]) == pytest.approx(0.8, rel=1e-6)
    assert float(model.dense.bias[0]) == pytest.approx(-0.2, rel=1e-6)


def update_by_tape(optimizer, variable):
    def step(factor):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(variable.value**2) * factor)
        optimizer.apply_gradients([(tape.gradient(loss, variable.value), variable)])

    return step


@pytest.mark.parametrize("kind", KINDS)
def test_hand_written_loop_eager_and_compiled(kind):
    results = []
    for options in (None, {}, {"jit_compile": True}):
        variable = keras.Variable([1.0, -2.0])
        optimizer = make(kind, manager=manager(256.0), learning_rate=0.125)
        optimizer.build([variable])

        step = update_by_tape(optimizer, variable)
        step = step if options is None else tf.function(**options)(step)
        for factor in (1.0, INF, 1.0):
            step(tf.constant(factor))
        results.append(variable.numpy())
        assert float(optimizer.loss_scale) == 128.0
    # Twice v -= 0.125 * 2v.
    assert_bit_equal(results, [np.float32([0.5625, -1.125])] * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_two_optimizers_in_one_step_do_not_disturb_each_other(kind):
    generator, critic = keras.Variable(1.0), keras.Variable(1.0)
    first = make(kind, manager=manager(8.0), learning_rate=0.5)
    second = make(kind, manager=manager(32.0), learning_rate=0.5)
    first.build([generator])
    second.build([critic])

    @tf.function
    def step(blow_up):
        with tf.GradientTape(persistent=True) as tape:
            one = first.scale_loss(generator.value)
            two = second.scale_loss(critic.value * blow_up)
        first.apply([tape.gradient(one, generator.value)], [generator])
        second.apply([tape.gradient(two, critic.value)], [critic])

    step(tf.constant(INF))
    assert (float(generator), float(critic)) == (0.5, 1.0)
    assert (float(first.loss_scale), float(second.loss_scale)) == (8.0, 16.0)
    assert (int(first.skipped_steps), int(second.skipped_steps)) == (0, 1)
    step(tf.constant(1.0))
    assert (float(generator), float(critic)) == (0.0, 0.5)


def test_a_manager_serves_one_optimizer_at_a_time():
    shared = manager()
    first, second = (NPULossScaleOptimizer(keras.optimizers.SGD(0.1), shared) for _ in range(2))
    first.build([keras.Variable(1.0)])
    with pytest.raises(ValueError, match="Each optimizer needs its own loss-scale manager"):
        second.build([keras.Variable(1.0)])
    assert first.loss_scale_manager.get_loss_scale() is first.loss_scale


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_the_variables_in_one_function(kind):
    v, w = keras.Variable(1.0, name="v"), keras.Variable(1.0, name="w")
    optimizer = make(kind, manager=manager(4.0), learning_rate=0.5)
    optimizer.build([v, w])
    optimizer.scale_loss(0.0)

    @tf.function
    def step(a, b):
        optimizer.apply([a], [v])
        optimizer.apply([b], [w])

    for a, b in ((4.0, 4.0), (4.0, INF), (INF, 2.0)):
        step(tf.constant(a), tf.constant(b))
    # The scale was halved twice before w's last step, of -0.5 * 2 / 1.
    assert (float(v), float(w)) == (0.0, -0.5)
    assert int(optimizer.attempted_steps) == 6
    events = optimizer.journal.drain()
    assert [(e.attempt, e.variable) for e in events] == [(4, "w"), (5, "v")]
    assert step.experimental_get_tracing_count() == 1
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([tf.constant(1.0)], [keras.Variable(1.0)])
