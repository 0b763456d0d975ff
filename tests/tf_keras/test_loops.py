# SPDX-License-Identifier: Apache-2.0
"""Tape loops: every idiom takes the steps of the plain optimizer on the good batches."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hosts import INF, LEGACY, MAKERS, assert_same, events, manager, module_of

from npu_keras import FixedLossScaleManager
from npu_keras import tf_keras as npu

BATCHES = np.float32([[1, 2], [3, 4], [INF, 1], [2, 1], [1, INF], [1, 1]])


def loss_of(v, x):
    return tf.reduce_sum((v * x) ** 2)


def minimize(optimizer, v, x):
    optimizer.minimize(lambda: loss_of(v, x), [v])


def minimize_with_tape(optimizer, v, x):
    with tf.GradientTape() as tape:
        loss = loss_of(v, x)
    optimizer.minimize(loss, [v], tape=tape)


def compute_and_apply(optimizer, v, x):
    optimizer.apply_gradients(optimizer.compute_gradients(lambda: loss_of(v, x), [v]))


def unscaled(optimizer, v, x):
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(loss_of(v, x))
    gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [v]))
    optimizer.apply_gradients(zip(gradients, [v], strict=True))


def scaled(optimizer, v, x):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(v, x))
    optimizer.apply(tape.gradient(loss, [v]), [v])


IDIOMS = [minimize, minimize_with_tape, compute_and_apply, unscaled, scaled]


def steps(take, optimizer, batches, in_graph):
    v = tf.Variable([1.0, 2.0], name="v")
    step = tf.function(take) if in_graph else take
    optimizer.build([v])
    for x in batches:
        step(optimizer, v, tf.constant(x))
    return v.numpy()


@pytest.mark.parametrize("kind", MAKERS)
def test_all_idioms_take_the_steps_of_the_good_batches(kind):
    plain = module_of(kind).Adam(0.1)
    v = tf.Variable([1.0, 2.0])
    for x in BATCHES[np.isfinite(BATCHES).all(axis=1)]:
        plain.minimize(lambda: loss_of(v, x), [v])  # noqa: B023
    for number, take in enumerate(IDIOMS):
        optimizer = MAKERS[kind]("Adam", learning_rate=0.1)
        got = steps(take, optimizer, BATCHES, in_graph=number == len(kind) % len(IDIOMS))
        np.testing.assert_array_equal(got, v.numpy(), err_msg=take.__name__)
        assert int(optimizer.iterations) == 4
        assert [event[:2] for event in events(optimizer)] == [(3, "back off"), (5, "back off")]


@pytest.mark.parametrize(
    "settings",
    [
        {"clipnorm": 0.01},
        {"clipvalue": 0.01},
        {"global_clipnorm": 0.01},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
        {"weight_decay": 0.1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_the_inner_optimizer_does_beside(settings):
    plain = tf_keras.optimizers.Adam(0.1, **settings)
    v = tf.Variable([1.0, 2.0])
    for x in BATCHES[np.isfinite(BATCHES).all(axis=1)]:
        plain.minimize(lambda: loss_of(v, x), [v])  # noqa: B023
    optimizer = MAKERS["wrapper"]("Adam", learning_rate=0.1, **settings)
    assert_same([steps(minimize, optimizer, BATCHES, True)], [v.numpy()])
    mine = optimizer.inner_optimizer.variables
    assert_same([each.numpy() for each in mine], [each.numpy() for each in plain.variables])


def test_sparse_and_missing_gradients():
    table, unused = tf.Variable([[1.0], [2.0], [3.0]]), tf.Variable(1.0)
    for module in (tf_keras.optimizers, LEGACY):
        table.assign([[1.0], [2.0], [3.0]])
        optimizer = npu.NPULossScaleOptimizer(module.SGD(1.0), manager())
        for factor in (1.0, INF, 1.0):
            with tf.GradientTape() as tape:
                rows = tf.gather(table, [0, 2, 2])
                loss = optimizer.get_scaled_loss(tf.reduce_sum(rows) * factor)
            gradients = tape.gradient(loss, [table, unused])
            assert isinstance(gradients[0], tf.IndexedSlices)
            gradients = optimizer.get_unscaled_gradients(gradients)
            optimizer.apply_gradients(zip(gradients, [table, unused], strict=True))
        assert table.numpy().ravel().tolist() == [-1.0, 2.0, -1.0]
        assert int(optimizer.skipped_steps) == 1


def test_float16_variables_are_updated_from_float32_gradients():
    for module in (tf_keras.optimizers, LEGACY):
        v = tf.Variable(tf.constant(1.0, tf.float16))
        optimizer = npu.NPULossScaleOptimizer(module.SGD(2.0**9), FixedLossScaleManager(2**15))
        # In float16 1 / 2**15 times a gradient of 2**-5 would be 0 by flushing denormals.
        optimizer.minimize(lambda: tf.cast(v, tf.float32) * 2.0**-20, [v])  # noqa: B023
        assert float(v) == 1.0 - 2.0**-11


def test_clipping_by_value_hides_no_overflow():
    v = tf.Variable(1.0)
    optimizer = npu.NPULossScaleOptimizer(tf_keras.optimizers.SGD(1.0), manager())
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(v * INF)
    (gradient,) = optimizer.get_unscaled_gradients(tape.gradient(loss, [v]))
    optimizer.apply_gradients([(tf.clip_by_value(gradient, -1.0, 1.0), v)])
    (event,) = optimizer.journal.drain()
    assert (float(v), event.kind, event.variable) == (1.0, "back off", "Variable")


def test_saturated_gradients_are_seen_before_they_are_unscaled():
    v = tf.Variable(1.0)
    optimizer = npu.NPULossScaleOptimizer(
        tf_keras.optimizers.SGD(1.0), manager(), overflow_mode="saturation"
    )
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer.get_scaled_loss(0.0)
    for value, wanted in ((65504.0, 1.0), (1024.0, 0.0)):
        scale = float(optimizer.loss_scale)
        gradients = optimizer.get_unscaled_gradients([tf.constant(value)])
        optimizer.apply_gradients(zip(gradients, [v], strict=True))
        assert float(v) == (wanted if wanted else 1.0 - 1024.0 / scale)
    assert int(optimizer.skipped_steps) == 1


def test_forgotten_halves_of_the_idiom_are_told_once():
    v = tf.Variable(1.0)

    def never_scaled():
        optimizer = npu.NPULossScaleOptimizer(tf_keras.optimizers.SGD(1.0), manager())
        for _ in range(2):
            optimizer.apply_gradients([(tf.constant(1.0), v)])

    def never_unscaled():
        optimizer = npu.NPULossScaleOptimizer(tf_keras.optimizers.SGD(1.0), manager())
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(v)
            optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    with pytest.warns(UserWarning, match="get_scaled_loss") as told:
        never_scaled()
    assert len(told) == 1
    with pytest.warns(UserWarning, match="too large by the loss scale") as told:
        never_unscaled()
    assert len(told) == 1


def test_wrong_calls_are_clear():
    v, other = tf.Variable(1.0, name="v"), tf.Variable(1.0, name="other")
    optimizer = npu.NPULossScaleOptimizer(LEGACY.SGD(1.0), manager())
    with pytest.raises(ValueError, match="needs the `tape`"):
        optimizer.minimize(tf.constant(1.0), [v])
    optimizer.minimize(lambda: v * 1.0, [v])
    with pytest.raises(ValueError, match="does not know the variable 'other:0'"):
        optimizer.minimize(lambda: other * 1.0, [other])
    with pytest.raises(ValueError, match="all None"):
        optimizer.minimize(lambda: tf.constant(1.0), [v])
    with pytest.raises(ValueError, match="2 gradients for 1 variables"):
        optimizer.apply([None, None], [v])


def test_a_legacy_class_without_the_newer_argument():
    class Old(LEGACY.SGD):
        _HAS_AGGREGATE_GRAD = False

        def apply_gradients(self, grads_and_vars, name=None):
            return super().apply_gradients(grads_and_vars, name)

    v = tf.Variable(1.0)
    optimizer = npu.NPULossScaleOptimizer(Old(0.5), manager())
    optimizer.minimize(lambda: v * 1.0, [v])
    assert float(v) == 0.5
