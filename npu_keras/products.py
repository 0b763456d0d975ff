# SPDX-License-Identifier: Apache-2.0
"""Ascend products: which of them have the optimizers, and which overflow modes.

The table is that of the CANN commercial documentation (TensorFlow 1.15 network migration, pages
"NPUOptimizer constructor" and "NPULossScaleOptimizer constructor", see `SOURCE`).
"""

import warnings
from typing import NamedTuple

from npu_keras import adapters

INF_NAN, SATURATION, AUTO = "inf_nan", "saturation", "auto"
OVERFLOW_MODES = (INF_NAN, SATURATION)
SOURCE = (
    "https://www.hiascend.com/document/detail/zh/TensorFlowCommercial/latest/migration/tfmigr1/"
    "tfmigr1_tfadapi_0064.html"
)


class Product(NamedTuple):
    """One row of the table.

    Attributes:
        name: name of the product or series.
        modes: the overflow modes it has, its default first; none where the optimizers are not
            supported.
        compatibility_only: modes that are there for old versions alone, are not developed
            further, and may compute less accurately.
    """

    name: str
    modes: tuple[str, ...] = ()
    compatibility_only: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether the optimizers can be used on it."""
        return bool(self.modes)

    @property
    def default_mode(self) -> str | None:
        """The overflow mode it is in unless told otherwise."""
        return self.modes[0] if self.modes else None


_WITH_BOTH = (
    "Atlas 350",
    "Atlas A3 training series",
    "Atlas A3 inference series",
    "Atlas A2 training series",
    "Atlas A2 inference series",
)

PRODUCTS = (
    *(Product(name, OVERFLOW_MODES, compatibility_only=(SATURATION,)) for name in _WITH_BOTH),
    Product("Atlas 200I/500 A2 inference product"),
    Product("Atlas inference series"),
    Product("Atlas training series", modes=(SATURATION,)),
)

_chosen: list[Product] = []


def find(name: str) -> Product:
    """Returns a product by its name, upper or lower case.

    Args:
        name: one of `[product.name for product in PRODUCTS]`.

    Raises:
        ValueError: for a product that is not in the table.

    Example:

    >>> find("Atlas training series").default_mode
    'saturation'
    """
    for product in PRODUCTS:
        if isinstance(name, str) and product.name.casefold() == name.strip().casefold():
            return product
    raise ValueError(f"Expected a product of this table. Received: product={name!r}.\n{table()}")


def set_product(name: str | None) -> None:
    """Says which product this process runs on, or rehearses for.

    From then on `overflow_mode="auto"` is that product's default, and a mode that it does not
    have is refused.

    Args:
        name: a product of the table, or None for no product.

    Raises:
        ValueError: for a product that is not in the table, or does not support the optimizers.
    """
    _chosen[:] = [] if name is None else [_supported(find(name))]


def resolve_mode(overflow_mode: str, product: str | None = None) -> str:
    """Returns the overflow mode that is meant.

    Args:
        overflow_mode: `"inf_nan"`, `"saturation"`, or `"auto"`: the product's default, and INF/NaN
            where there is no Ascend product.
        product: a product of the table; by default the one of `set_product`.

    Returns:
        `"inf_nan"` or `"saturation"`.

    Raises:
        ValueError: for a mode that does not exist, or that the product does not have; for
            `"auto"` on a machine with an Ascend adapter when no product was named.
    """
    if overflow_mode not in (*OVERFLOW_MODES, AUTO):
        raise ValueError(
            f"`overflow_mode` must be one of {(*OVERFLOW_MODES, AUTO)}. "
            f"Received: overflow_mode={overflow_mode!r}"
        )
    chosen = _supported(find(product)) if product is not None else next(iter(_chosen), None)
    if chosen is not None:
        return _mode_of(chosen, overflow_mode)
    if overflow_mode != AUTO:
        return overflow_mode
    if adapters.installed():
        raise ValueError(
            "`overflow_mode='auto'` depends on the Ascend product, which cannot be told from here. "
            "Call `npu_keras.products.set_product(name)` with one of this table, or name the mode."
            f"\n{table()}"
        )
    return INF_NAN


def table() -> str:
    """Returns the table as text, with its source."""
    lines = [f"  {product.name}: {_words(product)}" for product in PRODUCTS]
    return "\n".join(["Overflow modes of Ascend products:", *lines, f"Source: {SOURCE}"])


def _mode_of(product: Product, overflow_mode: str) -> str:
    mode = product.default_mode if overflow_mode == AUTO else overflow_mode
    if mode is None or mode not in product.modes:
        raise ValueError(
            f"{product.name} does not have this overflow mode. "
            f"Received: overflow_mode={overflow_mode!r}.\n{table()}"
        )
    if mode in product.compatibility_only:
        warnings.warn(
            f"On {product.name} the {mode} mode is there for compatibility with old versions "
            f"alone, and may compute less accurately; keep the default, {product.default_mode!r} "
            f"({SOURCE}).",
            stacklevel=4,
        )
    return mode


def _supported(product: Product) -> Product:
    if not product.supported:
        raise ValueError(
            f"The optimizers are not supported on this product. Received: "
            f"product={product.name!r}.\n{table()}"
        )
    return product


def _words(product: Product) -> str:
    if not product.supported:
        return "optimizers not supported"
    others = [
        f"{mode} (compatibility only)" if mode in product.compatibility_only else mode
        for mode in product.modes[1:]
    ]
    return ", ".join([f"{product.default_mode} (default)", *others])
