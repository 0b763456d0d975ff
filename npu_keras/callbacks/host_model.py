# SPDX-License-Identifier: Apache-2.0
"""What callbacks ask of a model beyond its public names: in Keras 3 or in tf_keras."""

import importlib
import sys
from types import ModuleType
from typing import Any

from npu_keras import _upstream


def internals(model: Any) -> ModuleType:
    """Returns the module of private names that knows the model's class.

    tf_keras is found, not imported: without it in `sys.modules` no model can be one of its own.

    Args:
        model: a Keras 3 or a tf_keras model.
    """
    if is_tf_keras(model):
        return importlib.import_module("npu_keras._upstream_tf_keras")
    return _upstream


def is_tf_keras(model: Any) -> bool:
    """Whether a model is one of tf_keras."""
    tf_keras = sys.modules.get("tf_keras")
    return tf_keras is not None and isinstance(model, tf_keras.Model)


def compute_dtypes(model: Any) -> set[str]:
    """Returns the dtypes in which the layers of a model compute."""
    return {str(layer.compute_dtype) for layer in internals(model).layers_of(model)}


def optimizer_variables(model: Any) -> list[Any]:
    """Returns the variables that every rank has of the model's optimizer, of whatever flavour.

    Args:
        model: a built and compiled model.
    """
    optimizer = model.optimizer
    if not getattr(optimizer, "built", True):
        optimizer.build(model.trainable_variables)
    if hasattr(optimizer, "_own_variables"):
        return list(optimizer._own_variables())
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def common_variables(model: Any) -> list[Any]:
    """Returns the variables that stay equal on ranks that take their steps together.

    Args:
        model: a built and compiled model.
    """
    known = internals(model)
    variables = [*model.weights, *optimizer_variables(model)]
    own = [v for layer in known.layers_of(model) for v in known.own_non_trainable_variables(layer)]
    own += known.accumulated_gradients(model.optimizer)
    apart = {id(variable) for variable in own}
    return [variable for variable in variables if id(variable) not in apart]
