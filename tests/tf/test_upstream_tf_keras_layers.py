# SPDX-License-Identifier: Apache-2.0
"""The private names of tf_keras that say what a forward pass writes still mean what they did."""

import keras
import numpy as np
import pytest
import tf_keras

from npu_keras import _upstream_tf_keras as upstream
from npu_keras.callbacks import StepLimit
from npu_keras.callbacks.forward_state import forward_state
from npu_keras.callbacks.host_model import compute_dtypes, internals, is_tf_keras


@pytest.fixture(scope="module")
def model():
    layers = tf_keras.layers
    inner = tf_keras.Sequential([layers.InputLayer((2,)), layers.BatchNormalization()])
    made = tf_keras.Sequential([layers.InputLayer((2,)), inner, layers.Dense(1)])
    made.compile("sgd", "mse", metrics=["mae"])
    return made


def names(variables):
    return [variable.name.split("/")[-1].split(":")[0] for variable in variables]


def test_the_library_of_a_model_is_recognised(model):
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert is_tf_keras(model)
    assert not is_tf_keras(other)
    assert internals(model) is upstream
    assert internals(other).__name__ == "npu_keras._upstream"
    assert compute_dtypes(model) == compute_dtypes(other) == {"float32"}


def test_layers_of_finds_nested_layers_and_the_model(model):
    layers = upstream.layers_of(model)
    assert layers[0] is model
    assert {"BatchNormalization", "Dense"} <= {type(layer).__name__ for layer in layers}


def test_own_non_trainable_variables_are_not_those_of_a_frozen_layer():
    norm = tf_keras.layers.BatchNormalization()
    norm.build((None, 2))
    norm.trainable = False
    own = upstream.own_non_trainable_variables(norm)
    assert sorted(names(own)) == ["moving_mean", "moving_variance"]
    assert len(norm.non_trainable_variables) == 4


def test_the_state_of_a_stateful_generator_is_found():
    stateful = tf_keras.layers.Dropout(0.5, rng_type="stateful")
    stateful(np.ones((1, 2)), training=True)
    (state,) = upstream.seed_states(stateful)
    before = state.numpy().tolist()
    stateful(np.ones((1, 2)), training=True)
    assert state.numpy().tolist() != before
    assert upstream.seed_states(tf_keras.layers.Dropout(0.5)) == []
    assert upstream.seed_states(tf_keras.layers.Dense(1)) == []


def test_the_loss_average_counts_samples(model):
    assert upstream.loss_average(tf_keras.Sequential()) == []
    assert upstream.samples_in_loss(tf_keras.Sequential()) == 0.0
    model.fit(np.ones((5, 2)), np.ones((5, 1)), batch_size=2, verbose=0)
    assert names(upstream.loss_average(model)) == ["total", "count"]
    assert upstream.samples_in_loss(model) == 5.0


def test_what_the_forward_pass_writes_is_found(model):
    assert sorted(names(forward_state(model))) == [
        "count",
        "moving_mean",
        "moving_variance",
        "total",
    ]


def test_a_train_step_of_ones_own_is_recognised(model):
    class Own(tf_keras.Model):
        def train_step(self, data):
            return {}

    assert upstream.has_own_train_step(Own())
    assert not upstream.has_own_train_step(model)


def test_no_optimizer_accumulates(model):
    assert upstream.accumulated_gradients(model.optimizer) == []


def test_the_list_of_callbacks_asks_what_ours_answer(model):
    limit = StepLimit(2)
    found = tf_keras.callbacks.CallbackList([limit], model=model)
    assert found._supports_tf_logs
    assert found._should_call_train_batch_hooks
    assert not found._should_call_test_batch_hooks
    assert not found._should_call_predict_batch_hooks
    model.fit(np.ones((5, 2)), np.ones((5, 1)), batch_size=1, verbose=0, callbacks=[limit])
    assert model.stop_training
    model.predict(np.ones((1, 2)), verbose=0, callbacks=[limit])
