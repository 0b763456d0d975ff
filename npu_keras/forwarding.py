# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters of an inner optimizer, read and set through its wrapper."""

from collections.abc import Iterable
from typing import Any

from npu_keras.inputs import learning_rate


class Forwarding:
    """Looks in `inner_optimizer` for what the wrapper itself does not have."""

    inner_optimizer: Any

    def __getattr__(self, name: str) -> Any:
        # Hyperparameters of the inner optimizer, such as `beta_1`, are read through the wrapper.
        if name.startswith("_") or vars(self).get("inner_optimizer") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = vars(self).get("inner_optimizer")
        own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        if own or not _has(inner, name):
            super().__setattr__(name, value)
        else:
            setattr(inner, name, value)


def forward(cls: type[Forwarding], names: Iterable[str]) -> None:
    """Gives a wrapper class properties that stand for the inner optimizer's."""
    for name in names:
        setattr(cls, name, _forwarded(name))


def _has(inner: Any, name: str) -> bool:
    # Legacy optimizers of tf_keras keep theirs in `_hyper`.
    return name in getattr(inner, "__dict__", ()) or name in getattr(inner, "_hyper", ())


def _forwarded(name: str) -> property:
    def read(self: Forwarding) -> Any:
        return getattr(self.inner_optimizer, name)

    def write(self: Forwarding, value: Any) -> None:
        if vars(self).get("inner_optimizer") is not None:  # not in a base class' constructor
            checked = learning_rate(value) if name in ("learning_rate", "lr") else value
            setattr(self.inner_optimizer, name, checked)

    return property(read, write, doc=f"The inner optimizer's `{name}`.")
