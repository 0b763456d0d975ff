# SPDX-License-Identifier: Apache-2.0
"""Loss scaling and distributed gradient aggregation for Keras optimizers."""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from npu_keras._version import __version__

if TYPE_CHECKING:
    from npu_keras import callbacks, distribute, plotting, tf_keras, v1
    from npu_keras.aggregation import GradientAggregation
    from npu_keras.buckets import set_split_strategy_by_idx, set_split_strategy_by_size
    from npu_keras.execution import set_fused_update_min_bytes
    from npu_keras.journal import Event, Journal
    from npu_keras.keras_mixins import GradientAggregationMixin, LossScaleMixin
    from npu_keras.loss_scale import (
        ExponentialUpdateLossScaleManager,
        FixedLossScaleManager,
        LossScaleManager,
        ScaleState,
    )
    from npu_keras.optimizers import NPUDistributedOptimizer, NPULossScaleOptimizer, NPUOptimizer
    from npu_keras.run_config import NPURunConfig
    from npu_keras.unscaled import unscaled_optimizers

_HOMES = {
    "Event": "journal",
    "ExponentialUpdateLossScaleManager": "loss_scale",
    "FixedLossScaleManager": "loss_scale",
    "GradientAggregation": "aggregation",
    "GradientAggregationMixin": "keras_mixins",
    "Journal": "journal",
    "LossScaleManager": "loss_scale",
    "LossScaleMixin": "keras_mixins",
    "NPUDistributedOptimizer": "optimizers",
    "NPULossScaleOptimizer": "optimizers",
    "NPUOptimizer": "optimizers",
    "NPURunConfig": "run_config",
    "ScaleState": "loss_scale",
    "set_fused_update_min_bytes": "execution",
    "set_split_strategy_by_idx": "buckets",
    "set_split_strategy_by_size": "buckets",
    "unscaled_optimizers": "unscaled",
}
_SUBMODULES = ("ascend", "callbacks", "distribute", "engines", "plotting", "tf_keras", "v1")

__all__ = [
    "Event",
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "GradientAggregation",
    "GradientAggregationMixin",
    "Journal",
    "LossScaleManager",
    "LossScaleMixin",
    "NPUDistributedOptimizer",
    "NPULossScaleOptimizer",
    "NPUOptimizer",
    "NPURunConfig",
    "ScaleState",
    "__version__",
    "callbacks",
    "distribute",
    "plotting",
    "set_fused_update_min_bytes",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
    "tf_keras",
    "unscaled_optimizers",
    "v1",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"npu_keras.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"npu_keras.{name}")
    # With the names, Python asks "Did you mean: ...?".
    raise AttributeError(
        f"module 'npu_keras' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_SUBMODULES])


def _without_tensorflow() -> bool:
    """Whether only the parts without TensorFlow are wanted: `python -m npu_keras`, pure tests."""
    return sys.argv[:1] == ["-m"] or "NPU_KERAS_LAZY" in os.environ


if not _without_tensorflow():
    # Keras finds a saved optimizer's class by its registration, which importing it makes.
    importlib.import_module("npu_keras.optimizers")
    importlib.import_module("npu_keras.keras_mixins")
