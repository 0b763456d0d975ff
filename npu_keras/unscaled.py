# SPDX-License-Identifier: Apache-2.0
"""Finds the optimizers of a float16 model for which nobody scales the loss."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import keras

from npu_keras._upstream import BOOKKEEPING, layers_of


def unscaled_optimizers(model: Any) -> list[str]:
    """Warns of each optimizer of a model that computes in float16 and does not scale its loss.

    `compile` provides for the optimizer it is given. A second one, such as the critic's of a GAN,
    kept in an attribute of the model, is overlooked: its small gradients become 0 in float16.

    `npu_keras.callbacks.LossScaleLogger` calls it at the begin of training.

    Args:
        model: a Keras 3 model.

    Returns:
        Names of the attributes, of one in a list or dict with its position or key. Empty for a
        model without a layer that computes in float16.

    Raises:
        TypeError: for what is no model.

    Example:

    ```python
    class GAN(keras.Model):
        def compile(self, critic_optimizer, generator_optimizer):
            super().compile()
            self.critic_optimizer = critic_optimizer
            self.generator_optimizer = generator_optimizer
            npu_keras.unscaled_optimizers(self)
    ```
    """
    if not isinstance(model, _model_classes()):
        raise TypeError(f"`model` must be a Keras model. Received: model={model!r}")
    if not any(layer.compute_dtype == "float16" for layer in layers_of(model)):
        return []
    names = [name for name, optimizer in _optimizers(model) if not _scales(optimizer)]
    for name in names:
        warnings.warn(
            f"`{name}` of {type(model).__name__} does not scale the loss, but the model computes "
            "in float16, where small gradients become 0. Wrap it in `NPULossScaleOptimizer`, with "
            "a loss-scale manager of its own, and use its `scale_loss`.",
            stacklevel=2,
        )
    return names


def _optimizers(model: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(model).items():
        if name.startswith(BOOKKEEPING):  # a second record of the attributes
            continue
        for label, item in [(name, value), *_items(name, value)]:
            if isinstance(item, _optimizer_classes()):
                yield label, item


def _model_classes() -> tuple[type, ...]:
    tf_keras = sys.modules.get("tf_keras")
    return (keras.Model,) if tf_keras is None else (keras.Model, tf_keras.Model)


def _optimizer_classes() -> tuple[type, ...]:
    tf_keras = sys.modules.get("tf_keras")
    if tf_keras is None:
        return (keras.optimizers.Optimizer,)
    own = tf_keras.optimizers
    return keras.optimizers.Optimizer, own.Optimizer, own.legacy.Optimizer


def _items(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{name}[{position}]", item) for position, item in enumerate(value)]
    return []


def _scales(optimizer: Any) -> bool:
    scaling = getattr(optimizer, "_scaling", None)
    if scaling is not None:
        return scaling.active
    # Its name, since the class may be that of Keras 3 or of tf_keras, which is not imported.
    scaler = any(base.__name__ == "LossScaleOptimizer" for base in type(optimizer).__mro__)
    return scaler or getattr(optimizer, "loss_scale_factor", None) is not None
