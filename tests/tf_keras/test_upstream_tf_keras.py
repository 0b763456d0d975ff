# SPDX-License-Identifier: Apache-2.0
"""The private names of tf_keras still mean what they did."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from npu_keras import _upstream_tf_keras as upstream

NEW, LEGACY = tf_keras.optimizers, tf_keras.optimizers.legacy


def test_legacy_optimizers_are_told_from_new_ones():
    assert upstream.is_legacy(LEGACY.Adam())
    assert not upstream.is_legacy(NEW.Adam())


def test_replicas_of_a_variable_have_one_key():
    first, second = tf.Variable(1.0), tf.Variable(1.0)
    assert upstream.variable_key(first) == upstream.variable_key(first)
    assert upstream.variable_key(first) != upstream.variable_key(second)


@pytest.mark.parametrize("module", [NEW, LEGACY], ids=["new", "legacy"])
def test_optimizers_that_update_all_at_once(module):
    names = ["SGD", "Adam", "Adamax", "Adagrad", "RMSprop", "Ftrl", "Adadelta", "Nadam"]
    at_once = [n for n in names if upstream.updates_all_at_once(getattr(module, n)())]
    assert at_once == ["Nadam"]


def test_the_default_sum_over_replicas_is_known():
    assert not upstream.aggregates_by_itself(LEGACY.SGD())
    assert not upstream.aggregates_by_itself(NEW.SGD())
    assert upstream.aggregates_by_itself(LEGACY.SGD(gradient_aggregator=list))


def test_checkpoints_see_variables_made_later():
    optimizer = NEW.SGD()
    children = optimizer._trackable_children
    assert "late" not in children()
    optimizer.late = tf.Variable(1.0)
    assert "late" not in children()  # else `fresh_children` is no longer needed
    assert "late" in upstream.fresh_children(optimizer, children, "checkpoint")


def test_what_a_forward_pass_writes_is_found():
    layers = [
        tf_keras.layers.Dense(2, input_shape=(2,), trainable=False, name="frozen"),
        tf_keras.layers.BatchNormalization(name="norm"),
        tf_keras.layers.Dense(1),
    ]
    model = tf_keras.Sequential(layers)
    assert {"frozen", "norm"} < {layer.name for layer in upstream.layers_of(model)}
    assert upstream.own_non_trainable_variables(layers[0]) == []
    assert len(upstream.own_non_trainable_variables(layers[1])) == 2
    model.compile("sgd", "mse")
    model.fit(np.ones((5, 2)), np.ones((5, 1)), batch_size=2, verbose=0)
    assert upstream.samples_in_loss(model) == 5.0
    assert len(upstream.loss_average(model)) == 2


def test_a_train_step_of_ones_own_is_recognised():
    class Own(tf_keras.Model):
        def train_step(self, data):
            return {}

    assert upstream.has_own_train_step(Own())
    assert not upstream.has_own_train_step(tf_keras.Sequential())


def test_rules_of_tf_keras_are_told_from_others():
    class Own(NEW.SGD):
        def update_step(self, gradient, variable):
            raise NotImplementedError

    assert upstream.updates_by_rule(NEW.AdamW())
    assert not upstream.updates_by_rule(Own())
    replaced = NEW.SGD()
    vars(replaced)["_internal_apply_gradients"] = list
    assert not upstream.updates_by_rule(replaced)
