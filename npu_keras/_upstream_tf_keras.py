# SPDX-License-Identifier: Apache-2.0
"""Every private name of tf_keras that is used, in one place; see `npu_keras._upstream`.

The tests of this module fail, by name, when one is gone.
"""

from typing import Any


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


def has_own_train_step(model: Any) -> bool:
    """Whether `train_step` is the user's and not the one of tf_keras (tf_keras 2.21.0)."""
    return not str(model.train_step.__module__).startswith("tf_keras.src.")


def _loss_mean(model: Any) -> Any:
    return getattr(getattr(model, "compiled_loss", None), "_total_loss_mean", None)
