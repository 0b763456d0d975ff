# SPDX-License-Identifier: Apache-2.0
"""No flavour has a logic of its own: each reaches the same modules for it."""

import grimp
import pytest

LOGIC = ["step", "loss_scale", "overflow", "aggregation", "decision", "journal", "unscaling"]


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("npu_keras", cache_dir=None)


@pytest.mark.parametrize("host", ["host", "tf_keras.host", "v1.host"])
def test_every_flavour_reaches_the_one_logic(imports, host):
    reached = imports.find_upstream_modules(f"npu_keras.{host}")
    assert {f"npu_keras.{name}" for name in LOGIC} <= reached
