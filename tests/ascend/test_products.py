# SPDX-License-Identifier: Apache-2.0
"""The table of products, and what `overflow_mode="auto"` is on each."""

import pytest

from npu_keras import adapters, products
from npu_keras.products import find, resolve_mode, set_product

WITH_BOTH = [
    "Atlas 350",
    "Atlas A3 training series",
    "Atlas A3 inference series",
    "Atlas A2 training series",
    "Atlas A2 inference series",
]
WITHOUT_OPTIMIZERS = ["Atlas 200I/500 A2 inference product", "Atlas inference series"]


@pytest.fixture(autouse=True)
def no_product():
    yield
    set_product(None)


def test_the_table_has_each_product_once():
    names = [product.name for product in products.PRODUCTS]
    assert sorted(names) == sorted([*WITH_BOTH, *WITHOUT_OPTIMIZERS, "Atlas training series"])


@pytest.mark.parametrize("name", WITH_BOTH)
def test_inf_nan_is_the_default_and_saturation_for_compatibility(name):
    assert find(name).modes == ("inf_nan", "saturation")
    assert resolve_mode("auto", name) == resolve_mode("inf_nan", name) == "inf_nan"
    with pytest.warns(UserWarning, match=f"On {name} the saturation mode is there for compat"):
        assert resolve_mode("saturation", name) == "saturation"


def test_the_training_series_saturates_only():
    assert resolve_mode("auto", "atlas TRAINING series") == "saturation"
    assert resolve_mode("saturation", "Atlas training series") == "saturation"
    with pytest.raises(ValueError, match="Atlas training series does not have") as error:
        resolve_mode("inf_nan", "Atlas training series")
    assert products.table() in str(error.value)
    assert products.SOURCE in str(error.value)


@pytest.mark.parametrize("name", WITHOUT_OPTIMIZERS)
@pytest.mark.parametrize("mode", ["auto", "inf_nan", "saturation"])
def test_products_without_the_optimizers(name, mode):
    with pytest.raises(ValueError, match=r"not supported on this product(.|\n)*Source: https"):
        resolve_mode(mode, name)
    with pytest.raises(ValueError, match="not supported"):
        set_product(name)


def test_unknown_names_cite_the_table():
    with pytest.raises(ValueError, match=r"product='Atlas 9'(.|\n)*Atlas training series: satur"):
        resolve_mode("auto", "Atlas 9")
    with pytest.raises(ValueError, match="`overflow_mode` must be one of.*'auto'.*'wrap'"):
        resolve_mode("wrap")


def test_off_ascend():
    assert resolve_mode("auto") == "inf_nan"
    assert resolve_mode("saturation") == "saturation"


def test_on_ascend_the_product_has_to_be_named(monkeypatch):
    monkeypatch.setattr(adapters, "installed", lambda: ("npu_device",))
    with pytest.raises(ValueError, match="set_product"):
        resolve_mode("auto")
    set_product("Atlas A2 training series")
    assert resolve_mode("auto") == "inf_nan"


def test_a_product_decides_what_optimizers_may_be_told():
    overflow = pytest.importorskip("npu_keras.overflow")
    set_product("Atlas training series")
    assert overflow.validate_mode("auto") == "saturation"
    with pytest.raises(ValueError, match="does not have this overflow mode"):
        overflow.validate_mode("inf_nan")
