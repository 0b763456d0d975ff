# SPDX-License-Identifier: Apache-2.0
"""Every private name of tf_keras that is used, in one place; see `npu_keras._upstream`.

The tests of this module fail, by name, when one is gone.
"""

from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.optimizers.utils import all_reduce_sum_gradients

INHERITED = (
    "_compute_gradients",
    "_create_all_weights",
    "_hyper",
    "_is_wrapped_by_loss_scale_optimizer",
    "_mesh",
    "_run_with_dtensor",
    "_trackable_children",
    "_weights",
)
"""What the tf_keras hosts use of the optimizers they are kinds of (tf_keras 2.21.0)."""


def layers_of(model: Any) -> list[Any]:
    """The model and all layers in it, nested ones included (tf_keras 2.21.0)."""
    return list(model._flatten_layers())


def own_non_trainable_variables(layer: Any) -> list[Any]:
    """Variables a layer itself made as non-trainable (tf_keras 2.21.0).

    The public `non_trainable_variables` also lists the weights of a frozen layer.
    """
    return list(layer._non_trainable_weights)


def seed_states(layer: Any) -> list[Any]:
    """The state of a layer's own random generator, if it has a stateful one (tf_keras 2.21.0)."""
    random = getattr(layer, "_random_generator", None)
    generator = getattr(random, "_generator", None)
    return [] if generator is None else [generator.state]


def loss_average(model: Any) -> list[Any]:
    """The variables of the running mean of the loss, none before `compile` (tf_keras 2.21.0)."""
    mean = _loss_mean(model)
    return [] if mean is None else list(mean.variables)


def samples_in_loss(model: Any) -> float:
    """How many samples the running mean of the loss has counted since its reset (2.21.0)."""
    mean = _loss_mean(model)
    return 0.0 if mean is None else float(mean.count.numpy())


def accumulated_gradients(optimizer: Any) -> list[Any]:
    """None: optimizers of tf_keras do not accumulate (tf_keras 2.21.0)."""
    return []


def has_own_train_step(model: Any) -> bool:
    """Whether `train_step` is the user's and not the one of tf_keras (tf_keras 2.21.0)."""
    return not str(model.train_step.__module__).startswith("tf_keras.src.")


def _loss_mean(model: Any) -> Any:
    return getattr(getattr(model, "compiled_loss", None), "_total_loss_mean", None)


def is_legacy(optimizer: Any) -> bool:
    """Whether an optimizer is one of `tf_keras.optimizers.legacy` (tf_keras 2.21.0)."""
    return isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer)


def variable_key(variable: Any) -> Any:
    """What tells variables apart, the same for all replicas of one (TensorFlow 2.21.0)."""
    container = getattr(variable, "_distributed_container", None)
    return (variable if container is None else container())._unique_id


def updates_all_at_once(optimizer: Any) -> bool:
    """Whether an update may run only once in a step (tf_keras 2.21.0).

    Nadam, for one, keeps a product of its own beside the slots of the variables.
    """
    if is_legacy(optimizer):
        return type(optimizer)._prepare is not tf_keras.optimizers.legacy.Optimizer._prepare
    own = type(optimizer)._internal_apply_gradients
    nadam = isinstance(optimizer, tf_keras.optimizers.Nadam)  # counts its calls in Python
    return nadam or own is not tf_keras.optimizers.Optimizer._internal_apply_gradients


def updates_by_rule(optimizer: Any) -> bool:
    """Whether an optimizer updates by a rule of tf_keras' own (tf_keras 2.21.0).

    Those write variables by the methods of the variables, whatever their settings.

    Args:
        optimizer: an optimizer that is no legacy one, or the `super()` of one.
    """
    base = tf_keras.optimizers.Optimizer
    own = optimizer.update_step, optimizer.apply_gradients, optimizer._apply_weight_decay
    usual = (
        getattr(optimizer._internal_apply_gradients, "__func__", None)
        is base._internal_apply_gradients
    )
    return usual and all(method.__module__.startswith("tf_keras.src.") for method in own)


def aggregates_by_itself(optimizer: Any) -> bool:
    """Whether a legacy optimizer was given a way of its own to sum over replicas (2.21.0)."""
    return is_legacy(optimizer) and optimizer.gradient_aggregator is not all_reduce_sum_gradients


def apply_unaggregated(optimizer: Any, apply_gradients: Any, pairs: Any) -> None:
    """Calls a tf_keras optimizer's `apply_gradients` without its sum over replicas (2.21.0)."""
    if not is_legacy(optimizer):
        apply_gradients(pairs, skip_gradients_aggregation=True)
    elif optimizer._HAS_AGGREGATE_GRAD or tf.distribute.get_strategy().num_replicas_in_sync > 1:
        apply_gradients(pairs, experimental_aggregate_gradients=False)
    else:  # a class of the user's own from before there was such an argument
        apply_gradients(pairs)


def fresh_children(optimizer: Any, children: Any, save_type: str, **kwargs: Any) -> Any:
    """The objects a checkpoint finds in a new optimizer, those made since the last one included.

    tf_keras 2.21.0 keeps the first answer for good, so that variables made by `build` after a
    `restore` would never be restored.
    """
    vars(optimizer).pop("_coalesced_children", None)
    return children(save_type, **kwargs)
