# SPDX-License-Identifier: Apache-2.0
"""The private names of Keras that say what a forward pass writes still mean what they did."""

import keras
import numpy as np

from npu_keras import _upstream


def nested_model():
    inner = keras.Sequential([keras.layers.Input((2,)), keras.layers.BatchNormalization()])
    layers = [keras.layers.Input((2,)), inner, keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def test_layers_of_finds_nested_layers_and_the_model():
    model = nested_model()
    layers = _upstream.layers_of(model)
    assert layers[0] is model
    assert {"BatchNormalization", "Dropout", "Dense"} <= {type(layer).__name__ for layer in layers}


def test_own_non_trainable_variables_are_not_those_of_a_frozen_layer():
    norm = keras.layers.BatchNormalization()
    norm.build((None, 2))
    norm.trainable = False
    names = [variable.name for variable in _upstream.own_non_trainable_variables(norm)]
    assert sorted(names) == ["moving_mean", "moving_variance"]
    assert len(norm.non_trainable_variables) == 4


def test_seed_states_are_those_of_the_layer_itself():
    (state,) = _upstream.seed_states(keras.layers.Dropout(0.5))
    assert state.path.endswith("seed_generator_state")
    assert _upstream.seed_states(keras.layers.Dense(1)) == []


def test_the_loss_average_appears_with_compile():
    model = nested_model()
    assert _upstream.loss_average(model) == []
    model.compile("sgd", "mse", metrics=["mae"])
    assert [variable.path for variable in _upstream.loss_average(model)] == [
        "loss/total",
        "loss/count",
    ]


def test_a_train_step_of_ones_own_is_recognised():
    class Own(keras.Model):
        def train_step(self, data):
            return {}

    assert _upstream.has_own_train_step(Own())
    assert not _upstream.has_own_train_step(nested_model())


def test_the_loss_average_counts_samples():
    model = nested_model()
    assert _upstream.samples_in_loss(model) == 0.0
    model.compile("sgd", "mse")
    model.fit(np.ones((5, 2)), np.ones((5, 1)), batch_size=2, verbose=0)
    assert _upstream.samples_in_loss(model) == 5.0
