# SPDX-License-Identifier: Apache-2.0
"""What holds for `keras.optimizers.LossScaleOptimizer` holds for ours in its place."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.testing import TestCase
from scaled import INF, KINDS, make, manager, weight

from npu_keras import FixedLossScaleManager, NPULossScaleOptimizer, NPUOptimizer


def keras_manager(scale=2**15, grow=2000):
    """The manager that does what Keras' own class does."""
    return manager(scale, grow, 1, 2, 0.5)


def optimizer_like_keras(kind, scale=2**15, grow=2000, **settings):
    optimizer = make(kind, keras.optimizers.SGD, keras_manager(scale, grow), **settings)
    optimizer.scale_loss(0.0)
    return optimizer


class Serialization(TestCase):
    def runTest(self):
        """Only the inherited assertions are used."""


@pytest.mark.parametrize("kind", KINDS)
class TestLikeKeras:
    def test_is_an_instance(self, kind):
        assert isinstance(make(kind, learning_rate=0.5), keras.optimizers.LossScaleOptimizer)

    def test_config_survives_serialization(self, kind):
        optimizer = make(kind, learning_rate=0.5, momentum=0.06, nesterov=True, weight_decay=0.004)
        Serialization().run_class_serialization_test(optimizer)

    def test_config_is_read_only_and_json_safe(self, kind):
        optimizer = make(
            kind,
            keras.optimizers.Adam,
            learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9),
            clipnorm=0.25,
        )
        config = optimizer.get_config()
        text = json.dumps(config)
        first = type(optimizer).from_config(config)
        second = type(optimizer).from_config(config)
        assert json.dumps(config) == text
        assert json.dumps(first.get_config()) == json.dumps(second.get_config()) == text
        assert second.clipnorm == 0.25
        assert second.loss_scale_manager == manager()

    def test_finite_step(self, kind):
        optimizer = optimizer_like_keras(kind, learning_rate=0.5)
        variable = weight([1.0, 2.0, 3.0, 4.0])
        gradient = tf.constant([1.0, 6.0, 7.0, 2.0]) * optimizer.initial_scale
        optimizer.apply([gradient], [variable])
        np.testing.assert_array_equal(variable, [0.5, -1.0, -0.5, 3.0])
        assert int(optimizer.iterations) == 1

    def test_built_before_and_applied_without_variables(self, kind):
        optimizer = optimizer_like_keras(kind, learning_rate=0.5)
        variable = weight([1.0, 2.0, 3.0, 4.0])
        optimizer.build([variable])
        optimizer.apply([tf.constant([1.0, 6.0, 7.0, 2.0]) * optimizer.initial_scale])
        np.testing.assert_array_equal(variable, [0.5, -1.0, -0.5, 3.0])

    def test_infinite_step(self, kind):
        optimizer = optimizer_like_keras(kind, learning_rate=0.5)
        variable = weight([1.0, 2.0, 3.0, 4.0])
        optimizer.apply([tf.fill((4,), INF)], [variable])
        np.testing.assert_array_equal(variable, [1.0, 2.0, 3.0, 4.0])
        assert int(optimizer.iterations) == 0
        assert float(optimizer.dynamic_scale) == 2**14

    def test_variable_that_is_overwritten_with_its_gradient(self, kind):
        optimizer = optimizer_like_keras(kind, learning_rate=0.5)
        variable = weight([1.0, 2.0, 3.0, 4.0])
        variable.overwrite_with_gradient = True
        gradient = tf.constant([1.0, 6.0, 7.0, 2.0])
        optimizer.apply([gradient], [variable])
        np.testing.assert_array_equal(variable, gradient)

    def test_downscaling(self, kind):
        optimizer = optimizer_like_keras(kind, scale=400.0, learning_rate=0.5)
        variable = weight([1.0, 2.0, 3.0, 4.0])
        for _ in range(4):
            optimizer.apply([tf.fill((4,), INF)], [variable])
        assert float(optimizer.scale_loss(1.0)) == 25.0

    def test_upscaling(self, kind):
        optimizer = optimizer_like_keras(kind, scale=2.0, grow=2, learning_rate=0.5)
        variable = weight([1.0, 2.0, 3.0, 4.0])
        for _ in range(8):
            optimizer.apply([tf.constant([1.0, 6.0, 7.0, 2.0])], [variable])
        assert float(optimizer.scale_loss(1.0)) == 32.0

    def test_iterations_count_applied_steps(self, kind):
        optimizer = optimizer_like_keras(kind, learning_rate=0.5)
        variable = weight([1.0, 2.0, 3.0, 4.0])
        optimizer.build([variable])
        assert optimizer.iterations.value == 0
        for step in range(3):
            optimizer.apply([tf.constant([1.0, 6.0, 7.0, 2.0])], [variable])
            assert optimizer.iterations.value == step + 1
        assert int(optimizer.step_counter) == 3

    def test_stateless_apply_is_refused(self, kind):
        optimizer = optimizer_like_keras(kind, learning_rate=0.5)
        with pytest.raises(ValueError, match="stateless_apply"):
            optimizer.stateless_apply([], [], [])

    def test_same_answer_as_keras_over_many_steps(self, kind):
        ours = optimizer_like_keras(kind, 1024.0, 3, learning_rate=0.5, momentum=0.9)
        theirs = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.5, momentum=0.9), initial_scale=1024.0, dynamic_growth_steps=3
        )
        v, w = weight([1.0, 2.0]), weight([1.0, 2.0])
        theirs.build([w])
        rng = np.random.default_rng(0)
        for step in range(30):
            gradient = rng.standard_normal(2).astype("float32") * float(theirs.dynamic_scale)
            gradient[0] = INF if step in (4, 5, 17) else gradient[0]
            ours.apply([tf.constant(gradient)], [v])
            theirs.apply([tf.constant(gradient)], [w])
            np.testing.assert_array_equal(v, w)
            assert float(ours.dynamic_scale) == float(theirs.dynamic_scale)
            assert int(ours.step_counter) == int(theirs.step_counter)
            assert int(ours.iterations) == int(theirs.iterations)

    def test_names_of_keras(self, kind):
        optimizer = optimizer_like_keras(kind, learning_rate=0.5)
        assert optimizer.initial_scale == 2.0**15
        assert optimizer.dynamic_growth_steps == 2000
        assert optimizer.loss_scale_factor is None
        assert not bool(optimizer.check_finite([tf.constant([1.0, INF])]))
        assert bool(optimizer.check_finite([tf.constant([1.0]), None]))


@pytest.mark.parametrize("cls", [NPULossScaleOptimizer, NPUOptimizer])
def test_inner_loss_scale_factor_does_not_interfere(cls):
    flags = {"is_loss_scale": True} if cls is NPUOptimizer else {}
    optimizer = cls(keras.optimizers.SGD(0.5, loss_scale_factor=100), keras_manager(), **flags)
    optimizer.scale_loss(0.0)
    variable = weight([1.0, 2.0, 3.0, 4.0])
    gradient = tf.constant([1.0, 6.0, 7.0, 2.0]) * optimizer.initial_scale
    optimizer.apply([gradient], [variable])
    np.testing.assert_array_equal(variable, [0.5, -1.0, -0.5, 3.0])


def test_inner_loss_scale_factor_acts_when_ours_is_off():
    optimizer = NPUOptimizer(keras.optimizers.SGD(0.5, loss_scale_factor=100))
    variable = weight(1.0)
    assert float(optimizer.scale_loss(2.0)) == 200.0
    optimizer.apply([tf.constant(100.0)], [variable])
    assert float(variable) == 0.5


def test_mixin_refuses_a_loss_scale_factor():
    with pytest.raises(ValueError, match=r"FixedLossScaleManager\(64\)"):
        make("mixin", learning_rate=0.1, loss_scale_factor=64)


def test_growth_steps_of_a_fixed_scale():
    optimizer = make("NPULossScaleOptimizer", manager=FixedLossScaleManager(4), learning_rate=0.1)
    assert optimizer.dynamic_growth_steps is None
