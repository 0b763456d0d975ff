# SPDX-License-Identifier: Apache-2.0
"""The loss-scaled optimizer of a model, and who speaks for the ranks that share its steps."""

from typing import Any

import tensorflow as tf

from npu_keras import cluster, engines
from npu_keras.engines import Engine


def require_loss_scaled(model: Any, callback: str) -> Any:
    """Returns the optimizer of a model if it is one of this package's, of whatever flavour.

    Args:
        model: a compiled model.
        callback: name of the class that needs it.

    Raises:
        ValueError: for any other optimizer, or none.
    """
    optimizer = getattr(model, "optimizer", None)
    if hasattr(optimizer, "journal") and hasattr(optimizer, "protect"):
        return optimizer
    raise ValueError(
        f"{callback} needs a model compiled with an optimizer of npu_keras, for example "
        "`model.compile(npu_keras.NPUOptimizer(optimizer, manager, is_loss_scale=True), ...)`. "
        f"Received: model.optimizer={optimizer!r}"
    )


def peers(optimizer: Any) -> Engine | None:
    """Returns the engine of the ranks that take steps together with `optimizer`, None if alone.

    Args:
        optimizer: an optimizer of this package.
    """
    if optimizer._aggregation is not None:
        engine = optimizer._aggregation.engine()
    elif optimizer._decides_together:
        engine = engines.find()
    else:
        return None  # processes that train alone, each its own model
    return engine if engine.size > 1 else None


def speaks_for_all(optimizer: Any) -> bool:
    """Whether this process is the first of those that take steps together with `optimizer`."""
    # In the scope of its strategy, in which `fit` of tf_keras calls its callbacks.
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:  # perhaps of several processes
        return cluster.find().rank == 0
    engine = peers(optimizer)
    return engine is None or engine.rank == 0
