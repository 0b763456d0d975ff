# SPDX-License-Identifier: Apache-2.0
"""What a loss-scale manager is."""

import gc
import numbers
import weakref
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np


class ScaleState(NamedTuple):
    """The numbers that move: three scalars of any one array type.

    Args:
        loss_scale: float32, the factor on the loss of the next step.
        good_steps: int32 or int64, consecutive finite steps.
        bad_steps: int32 or int64, steps with an overflow; finite steps do not reset it.
    """

    loss_scale: Any
    good_steps: Any
    bad_steps: Any


class LossScaleManager(ABC):
    """Decides the factor the loss is multiplied with before backward.

    Overriding `get_loss_scale` and `update_loss_scale` is enough for a manager that keeps its own
    state. A manager without state overrides `initial_state` and `next_state` as well.

    Example:

    >>> class Halving(LossScaleManager):
    ...     def __init__(self):
    ...         self.scale = 1024.0
    ...     def get_loss_scale(self):
    ...         return self.scale
    ...     def update_loss_scale(self, finite_grads):
    ...         self.scale = self.scale if finite_grads else self.scale / 2
    """

    enable_overflow_check: bool = True
    min_loss_scale: float | None = None
    max_loss_scale: float | None = None
    _owner: weakref.ref[Any] | None = None

    @abstractmethod
    def get_loss_scale(self) -> Any:
        """Return the current loss scale, a float32 scalar."""

    @abstractmethod
    def update_loss_scale(self, finite_grads: Any) -> Any:
        """Take note of one step.

        Args:
            finite_grads: Scalar bool, True if no gradient overflowed.
        """

    def get_enable_overflow_check(self) -> bool:
        """Return whether gradients are checked and a step with an overflow is skipped."""
        return self.enable_overflow_check

    def initial_state(self) -> ScaleState:
        """Return the state before the first step, as numpy scalars (float32, int32, int32)."""
        return ScaleState(np.float32(self.get_loss_scale()), np.int32(0), np.int32(0))

    def next_state(self, state: ScaleState, finite: Any, xp: Any) -> ScaleState:
        """Return the state after a step, without data-dependent branches.

        Args:
            state: The state the step ran with.
            finite: Scalar bool, True if no gradient overflowed.
            xp: Namespace with `where`, `minimum` and `maximum` for the arrays in `state`.

        Returns:
            A new `ScaleState`; each field keeps its dtype.
        """
        self._begin_step(state, xp)
        self.update_loss_scale(finite)
        scale = self.get_loss_scale()
        if isinstance(scale, numbers.Real):
            scale = np.float32(scale)
        return ScaleState(scale, *self._end_step(state, finite, xp))

    def bind(self, owner: Any) -> None:
        """Tie the manager to the optimizer that keeps its state; only a weak reference is held.

        Args:
            owner: Object with a `loss_scale` variable and a method
                `update_loss_scale(finite_grads)`.

        Raises:
            ValueError: If another living optimizer is bound already.
        """
        if not self._is_free_for(owner):
            gc.collect()  # the other optimizer may be garbage held by a reference cycle
        if not self._is_free_for(owner):
            raise ValueError(
                "Each optimizer needs its own loss-scale manager, but this one already belongs to "
                f"another {type(self._bound_owner()).__name__}. Construct a second manager with "
                f"the same arguments. Received: manager={self!r}, owner={owner!r}"
            )
        self._owner = weakref.ref(owner)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments as a JSON-safe dict.

        Raises:
            NotImplementedError: If a subclass does not override it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot be saved. Override `get_config()` to return its "
            "constructor arguments, and `from_config()` to build it from them."
        )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build a manager from the result of `get_config()`.

        Raises:
            NotImplementedError: If a subclass does not override it.
        """
        raise NotImplementedError(
            f"{cls.__name__} cannot be loaded. Override `from_config()` to build it from the "
            f"result of its `get_config()`. Received: config={config!r}"
        )

    def _begin_step(self, state: ScaleState, xp: Any) -> None:  # noqa: B027, most need none
        """Take note of the state before a step that the two methods take."""

    def _end_step(self, state: ScaleState, finite: Any, xp: Any) -> tuple[Any, Any]:
        """Return `(good_steps, bad_steps)` after it."""
        return count_step(state, finite, xp)

    def _bound_owner(self) -> Any:
        return None if self._owner is None else self._owner()

    def _is_free_for(self, owner: Any) -> bool:
        bound = self._bound_owner()
        return bound is None or bound is owner

    def __getstate__(self) -> dict[str, Any]:
        # A copied or pickled manager is free for another optimizer.
        tied = ("_owner", "graph_state")
        return {name: value for name, value in self.__dict__.items() if name not in tied}


def count_step(state: ScaleState, finite: Any, xp: Any) -> tuple[Any, Any]:
    """Return `(good_steps, bad_steps)` after a step that changed no scale."""
    good = xp.where(finite, state.good_steps + 1, 0)
    bad = xp.where(finite, state.bad_steps, state.bad_steps + 1)
    return good, bad
