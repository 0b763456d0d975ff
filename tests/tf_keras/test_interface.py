# SPDX-License-Identifier: Apache-2.0
"""The classes are tf_keras loss-scale optimizers to tf_keras, and say no to what is not its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hosts import INF, LEGACY, MAKERS, events, fit, manager, small_model

import npu_keras
from npu_keras import FixedLossScaleManager
from npu_keras import tf_keras as npu

ADAM = tf_keras.optimizers.Adam


@pytest.mark.parametrize("kind", MAKERS)
def test_compile_leaves_them_as_they_are(kind):
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer = MAKERS[kind]("SGD", learning_rate=0.1)
    assert isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    model = small_model()
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


def test_the_interface_of_tf_keras_loss_scale_optimizer():
    optimizer = npu.NPULossScaleOptimizer(ADAM(0.5, beta_1=0.8), manager(64.0, grow=7))
    assert optimizer.dynamic is True
    assert float(optimizer.loss_scale) == optimizer.initial_scale == 64.0
    assert int(optimizer.dynamic_counter) == 0
    assert optimizer.dynamic_growth_steps == 7
    assert optimizer.inner_optimizer.beta_1 == optimizer.beta_1 == 0.8
    fixed = npu.NPULossScaleOptimizer(LEGACY.SGD(0.5), FixedLossScaleManager(8))
    assert fixed.dynamic is False
    assert fixed.dynamic_counter is None
    assert fixed.dynamic_growth_steps is None
    assert float(fixed.get_scaled_loss(tf.constant(2.0, tf.float16))) == 16.0
    assert float(fixed.get_scaled_loss(lambda: 3.0)()) == 24.0
    half, none = fixed.get_unscaled_gradients([tf.constant(4.0, tf.float16), None])
    assert none is None
    assert (half.dtype, float(half)) == (tf.float32, 0.5)


@pytest.mark.parametrize("module", [tf_keras.optimizers, LEGACY], ids=["new", "legacy"])
def test_hyperparameters_are_those_of_the_inner_optimizer(module):
    optimizer = npu.NPULossScaleOptimizer(module.SGD(0.5, momentum=0.9), manager())
    for name in ("learning_rate", "lr"):
        setattr(optimizer, name, 0.25)
        assert float(optimizer.learning_rate) == float(optimizer.inner_optimizer.lr) == 0.25
    optimizer.momentum = 0.5
    assert float(optimizer.inner_optimizer.momentum) == 0.5
    callback = tf_keras.callbacks.LearningRateScheduler(lambda epoch: 0.125)
    fit(small_model(), optimizer, callbacks=[callback])
    assert float(optimizer.learning_rate) == 0.125


def test_a_schedule_cannot_be_overwritten():
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    optimizer = npu.NPULossScaleOptimizer(ADAM(schedule), manager())
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        optimizer.learning_rate = 0.5


@pytest.mark.parametrize("module", [tf_keras.optimizers, LEGACY], ids=["new", "legacy"])
def test_a_schedule_waits_for_skipped_steps(module):
    schedule = tf_keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.1])
    v = tf.Variable(0.0)
    optimizer = npu.NPULossScaleOptimizer(module.SGD(schedule), manager())
    for gradient in [INF] * 5 + [1.0, 1.0, 1.0]:
        optimizer.minimize(lambda: v * gradient, [v])  # noqa: B023
    assert int(optimizer.iterations) == 3
    assert float(v) == pytest.approx(-2.1)  # 1.0, 1.0, 0.1; run ahead it would be 0.3


@pytest.mark.parametrize("wrapper", ["NPUOptimizer", "NPUDistributedOptimizer"])
def test_other_homes_are_named(wrapper):
    cls, cls3 = getattr(npu, wrapper), getattr(npu_keras, wrapper)
    with pytest.raises(TypeError, match="`npu_keras`"):
        cls(keras.optimizers.SGD())
    with pytest.raises(TypeError, match=r"`npu_keras\.v1`"):
        cls(tf.compat.v1.train.AdamOptimizer())
    with pytest.raises(TypeError, match=r"`npu_keras\.tf_keras`"):
        cls3(ADAM())
    with pytest.raises(TypeError, match=r"such as `tf_keras\.optimizers\.Adam\(1e-3\)`"):
        cls("adam")


def test_mixins_are_for_their_own_home():
    with pytest.raises(TypeError, match=r"SGD is a tf_keras optimizer.*`npu_keras\.tf_keras`"):
        type("Wrong", (npu_keras.LossScaleMixin, tf_keras.optimizers.SGD), {})
    with pytest.raises(TypeError, match=r"SGD is a tf_keras optimizer"):
        type("Wrong", (npu_keras.LossScaleMixin, LEGACY.SGD), {})
    with pytest.raises(TypeError, match=r"SGD is a Keras 3 optimizer.*`npu_keras`"):
        type("Wrong", (npu.LossScaleMixin, keras.optimizers.SGD), {})


def test_what_scales_cannot_be_scaled_again():
    own = tf_keras.mixed_precision.LossScaleOptimizer
    scaled = npu.NPULossScaleOptimizer(ADAM(), manager())
    for twice in (scaled, own(ADAM()), MAKERS["legacy mixin"]("Adam")):
        with pytest.raises(TypeError, match="scales the loss already"):
            npu.NPULossScaleOptimizer(twice, manager())
    inner = ADAM()
    wrapper = npu.NPULossScaleOptimizer(inner, manager())
    with pytest.raises(ValueError, match="already wrapped"):
        own(inner)
    with pytest.raises(TypeError, match="already belongs to another wrapper"):
        npu.NPULossScaleOptimizer(inner, manager())
    with pytest.raises(TypeError, match="already belongs to another wrapper"):
        npu.NPULossScaleOptimizer(own(taken := ADAM()).inner_optimizer, manager())
    assert wrapper.inner_optimizer is inner
    assert taken is not inner
    aggregating = npu.NPUDistributedOptimizer(ADAM())
    with pytest.raises(TypeError, match="aggregates gradients already"):
        npu.NPUDistributedOptimizer(aggregating)


def test_settings_without_effect_are_errors():
    with pytest.raises(ValueError, match="gradient_aggregator"):
        npu.NPULossScaleOptimizer(LEGACY.SGD(gradient_aggregator=list), manager())
    with pytest.raises(ValueError, match="Keras 3 optimizer"):
        npu.NPUDistributedOptimizer(ADAM(), is_weight_update_sharding=True)
    with pytest.raises(TypeError, match="must stand before"):
        type("Wrong", (ADAM, npu.LossScaleMixin), {})
    with pytest.raises(ValueError, match="needs a `loss_scale_manager`"):
        npu.NPUOptimizer(ADAM(), is_loss_scale=True)
    with pytest.raises(TypeError, match="loss_scale_manager"):
        npu.NPULossScaleOptimizer(ADAM(), 1024)


def test_an_unguarded_float16_policy_is_noticed():
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer = npu.NPUDistributedOptimizer(ADAM())
    with pytest.warns(UserWarning, match="does not scale the loss"):
        optimizer.build([tf.Variable(1.0)])


@pytest.mark.parametrize("kind", ["wrapper", "legacy wrapper", "mixin"])
def test_fit_in_float16_skips_and_goes_on(kind):
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    model, optimizer = small_model(), MAKERS[kind]("SGD", learning_rate=0.01)
    before = [w.copy() for w in model.get_weights()]
    fit(model, optimizer, bad=[0, 1, 2, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert [kind for _, kind, _ in events(optimizer)] == ["back off"] * 8
    assert float(optimizer.loss_scale) == 4.0
    assert int(optimizer.iterations) == 0
    fit(model)
    assert int(optimizer.iterations) == 8
    assert not np.array_equal(model.get_weights()[0], before[0])
