# SPDX-License-Identifier: Apache-2.0
"""Ascend products and their overflow modes, under the name users look for; see there."""

from npu_keras.products import (
    OVERFLOW_MODES,
    PRODUCTS,
    SOURCE,
    Product,
    find,
    resolve_mode,
    set_product,
    table,
)

__all__ = [
    "OVERFLOW_MODES",
    "PRODUCTS",
    "SOURCE",
    "Product",
    "find",
    "resolve_mode",
    "set_product",
    "table",
]
