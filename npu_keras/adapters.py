# SPDX-License-Identifier: Apache-2.0
"""Are Ascend's own adapters installed? The modules by which this package stands in are not."""

import importlib.util
from collections.abc import Iterable

ADAPTERS = ("npu_device", "npu_bridge")
STAND_IN = "npu_keras.ascend"
"""Origin of the modules that `npu_keras.ascend.install` makes."""


def installed(names: Iterable[str] = ADAPTERS) -> tuple[str, ...]:
    """Returns which of these modules can be imported and are no stand-ins.

    Args:
        names: names of top-level modules.
    """
    return tuple(name for name in names if _is_real(name))


def _is_real(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return bool(spec) and getattr(spec, "origin", None) != STAND_IN
