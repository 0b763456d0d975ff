# SPDX-License-Identifier: Apache-2.0
"""Scripts written for Ascend's TensorFlow adapters, on a machine without one.

`python -m npu_keras.ascend script.py` (or `install()` before the script's imports) makes
`npu_bridge`, `npu_device`, `hccl` and `moxing` importable, with the classes of this package behind
their names. `saturating(model)` shows what saturating arithmetic does to a model, and `products`
says which Ascend product has which overflow modes.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npu_keras.ascend import products
    from npu_keras.ascend.importing import install, uninstall
    from npu_keras.ascend.saturation import saturating

_HOMES = {"install": "importing", "uninstall": "importing", "saturating": "saturation"}

__all__ = ["install", "products", "saturating", "uninstall"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"npu_keras.ascend.{_HOMES[name]}"), name)
    if name == "products":
        return importlib.import_module("npu_keras.ascend.products")
    raise AttributeError(f"module 'npu_keras.ascend' has no attribute {name!r}")
