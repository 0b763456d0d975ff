# SPDX-License-Identifier: Apache-2.0
"""Loss scaling and distributed gradient aggregation for Keras optimizers.

Names are loaded when they are first used, so that the command line and the pure parts do not pay
for TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from npu_keras._version import __version__

if TYPE_CHECKING:
    from npu_keras.host import LossScaleMixin
    from npu_keras.journal import Event, Journal
    from npu_keras.loss_scale import (
        ExponentialUpdateLossScaleManager,
        FixedLossScaleManager,
        LossScaleManager,
        ScaleState,
    )
    from npu_keras.optimizers import NPULossScaleOptimizer, NPUOptimizer

_HOMES = {
    "ExponentialUpdateLossScaleManager": "loss_scale",
    "FixedLossScaleManager": "loss_scale",
    "LossScaleManager": "loss_scale",
    "ScaleState": "loss_scale",
    "Event": "journal",
    "Journal": "journal",
    "LossScaleMixin": "host",
    "NPULossScaleOptimizer": "optimizers",
    "NPUOptimizer": "optimizers",
}
_SUBMODULES = ("callbacks",)

__all__ = [
    "Event",
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "Journal",
    "LossScaleManager",
    "LossScaleMixin",
    "NPULossScaleOptimizer",
    "NPUOptimizer",
    "ScaleState",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"npu_keras.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"npu_keras.{name}")
    raise AttributeError(f"module 'npu_keras' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_SUBMODULES])
