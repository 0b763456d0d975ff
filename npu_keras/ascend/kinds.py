# SPDX-License-Identifier: Apache-2.0
"""Which flavour of this package an optimizer of a script belongs to."""

import importlib
from typing import Any

import tensorflow as tf


def is_keras(opt: Any) -> bool:
    """Whether an optimizer is one of Keras 3 or of tf_keras."""
    return not isinstance(opt, tf.compat.v1.train.Optimizer) and bool(
        _roots(opt) & {"keras", "tf_keras"}
    )


def same_class_for(opt: Any, name: str) -> Any:
    """Returns the class of a name for the Keras that an optimizer is of.

    Args:
        opt: an optimizer of Keras 3 or of tf_keras.
        name: such as `"NPUOptimizer"`.
    """
    home = "npu_keras.tf_keras" if "tf_keras" in _roots(opt) else "npu_keras"
    return getattr(importlib.import_module(home), name)


def from_registry(opt: Any) -> Any:
    """Returns the optimizer that a name such as `"sgd"` stands for in `tf.keras`."""
    return tf.keras.optimizers.get(opt) if isinstance(opt, str) else opt


def _roots(opt: Any) -> set[str]:
    return {base.__module__.split(".")[0] for base in type(opt).__mro__}
