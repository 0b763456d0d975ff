# SPDX-License-Identifier: Apache-2.0
"""Options that mean something on Ascend hardware alone: they are kept, and reported once."""

import warnings
from typing import Any

_told: set[str] = set()
WORLD = "hccl_world_group"
groups = {WORLD}
"""The names of the group of all ranks."""


def warn_once(option: str, reason: str = "it is for Ascend hardware") -> None:
    """Warns, the first time, that an option has no effect here.

    Args:
        option: how the script calls it.
        reason: why it has none.
    """
    if option not in _told:
        _told.add(option)
        warnings.warn(f"`{option}` has no effect here: {reason}.", stacklevel=3)


def check_group(group: str) -> None:
    """Raises ValueError for a communication group other than that of all ranks."""
    if group not in groups:
        raise ValueError(
            f"There is one group of ranks here, that of all, called {sorted(groups)}; "
            f"`create_group` gives it another name. Received: group={group!r}"
        )


class Options:
    """A tree of options, such as `npu_device.global_options()`; any name can be set.

    Args:
        path: how the script calls it.
    """

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        branch = Options(f"{self._path}.{name}")
        object.__setattr__(self, name, branch)
        return branch

    def __setattr__(self, name: str, value: Any) -> None:
        warn_once(f"{self._path}.{name}")
        object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Takes the call of a method of the options, such as `set_graph_memory`."""
        warn_once(f"{self._path}()")
