# SPDX-License-Identifier: Apache-2.0
"""Modules under the names of the Ascend adapters, for `import` to find."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from npu_keras import adapters
from npu_keras.ascend.names import MODULES, REASONS, STARRED, source
from npu_keras.ascend.unavailable import Unavailable

ROOTS = tuple(sorted({name.partition(".")[0] for name in MODULES}))
"""The top-level modules that `install` provides."""

_PACKAGES = {
    ".".join(name.split(".")[:depth]) for name in MODULES for depth in range(1, name.count(".") + 2)
}


class StandIn(types.ModuleType):
    """A module of the adapters: imports what is behind a name when it is asked for.

    Scripts import names out of habit, so that one which cannot be here is an error once it is used.
    """

    def __getattr__(self, name: str) -> Any:
        if name in MODULES.get(self.__name__, ()):
            value = _load(source(self.__name__, name))
        elif f"{self.__name__}.{name}" in _PACKAGES:
            return importlib.import_module(f"{self.__name__}.{name}")
        elif name.startswith("__"):
            raise AttributeError(name)
        elif name in REASONS:
            value = Unavailable(missing(self.__name__, name))
        else:
            raise AttributeError(missing(self.__name__, name))
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return _names_in(self.__name__)


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins, and says what is there when a script asks for more."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of a stand-in; None for other modules.

        Raises:
            ImportError: for what the adapters may have, and is not here.
        """
        if fullname.partition(".")[0] not in ROOTS:
            return None
        if fullname not in _PACKAGES:
            parent, _, name = fullname.rpartition(".")
            raise ImportError(missing(parent, name), name=fullname)
        return importlib.machinery.ModuleSpec(
            fullname, self, origin=adapters.STAND_IN, is_package=True
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandIn:
        """Makes the module."""
        return StandIn(spec.name, f"Stand-in of npu_keras for `{spec.name}`.")

    def exec_module(self, module: types.ModuleType) -> None:
        """Says what `from module import *` brings."""
        names = {*MODULES.get(module.__name__, ()), *STARRED.get(module.__name__, ())}
        module.__dict__["__all__"] = sorted(names)


_finder = StandInFinder()


def install(*, replace: bool = False) -> None:
    """Makes `import npu_bridge`, `npu_device`, `hccl` and `moxing` find the names of this package.

    Call it before the imports of the script; `python -m npu_keras.ascend script.py` does. Tested
    on machines without an adapter alone; with one, `npu_keras` itself uses it (`engine="hccl"`,
    which was tested against a stand-in only).

    Args:
        replace: whether to hide an adapter that is installed.

    Raises:
        RuntimeError: if one of these modules is installed, or imported already.

    Example:

    ```python
    npu_keras.ascend.install()
    from npu_bridge.npu_init import *
    ```
    """
    if _finder in sys.meta_path:
        return
    found = adapters.installed(ROOTS)
    if found and not replace:
        raise RuntimeError(
            f"The modules {found} are installed here, and the script would not find them any "
            "more. Run the script without `npu_keras.ascend`, or call `install(replace=True)`."
        )
    _forget()
    sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Takes back `install`; what a script has imported by then keeps working."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        _forget()


def missing(module: str, name: str) -> str:
    """Returns the words for a name that is not here: why, and what there is."""
    reason = f": {REASONS[name]}" if name in REASONS else ""
    return (
        f"npu_keras has no `{module}.{name}`{reason}. In `{module}` there is: "
        f"{', '.join(_names_in(module))}."
    )


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
        del sys.modules[name]


def _load(where: str) -> Any:
    if where.startswith("@"):
        return importlib.import_module(where[1:])
    module, _, attribute = where.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def _names_in(module: str) -> list[str]:
    below = {name[len(module) + 1 :] for name in _PACKAGES if name.startswith(f"{module}.")}
    return sorted({*MODULES.get(module, ()), *(name.partition(".")[0] for name in below)})
