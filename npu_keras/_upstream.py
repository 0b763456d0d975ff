# SPDX-License-Identifier: Apache-2.0
"""Every private name of TensorFlow and Keras that is used, in one place.

Each entry says what it is for and the upstream version it was checked on; the tests of this
module fail, by name, when one is gone.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def in_xla() -> bool:
    """Whether the graph being traced will be compiled by XLA (TensorFlow 2.21.0)."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def supports_no_merge_call() -> bool:
    """Whether replicas write variables without a `merge_call` here (TensorFlow 2.21.0)."""
    return bool(tf.__internal__.distribute.strategy_supports_no_merge_call())


def leave_aggregation_to_us(optimizer: Any) -> None:
    """Stops a Keras optimizer from summing gradients over replicas itself (Keras 3.15.1)."""
    vars(optimizer)["_all_reduce_sum_gradients"] = list


def layers_of(model: Any) -> list[Any]:
    """The model and all layers in it, nested ones included (Keras 3.15.1)."""
    return list(model._flatten_layers())


def own_non_trainable_variables(layer: Any) -> list[Any]:
    """Variables a layer itself made as non-trainable (Keras 3.15.1).

    The public `non_trainable_variables` also lists the weights of a frozen layer.
    """
    return list(layer._non_trainable_variables)


def seed_states(layer: Any) -> list[Any]:
    """The states of a layer's own random generators (Keras 3.15.1)."""
    return [generator.state for generator in layer._seed_generators]


def loss_average(model: Any) -> list[Any]:
    """The variables of the running mean of the loss, none before `compile` (Keras 3.15.1)."""
    tracker = model._loss_tracker
    return [] if tracker is None else list(tracker.variables)


def has_own_train_step(model: Any) -> bool:
    """Whether `train_step` is the user's and not the one of Keras (Keras 3.15.1)."""
    return not str(model.train_step.__module__).startswith("keras.src.")
