# SPDX-License-Identifier: Apache-2.0
"""What the managers of this package share: the numbers that move are kept by an optimizer."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from npu_keras._loss_scale_base import LossScaleManager, ScaleState, count_step

_NO_GRAPH: Callable[[Any, ScaleState], Any] = lambda known, initial: None  # noqa: E731
graph_state_here = _NO_GRAPH
"""Returns variables of the present TensorFlow 1 graph, known or new; `npu_keras.v1` sets it."""

_OF_TENSORFLOW_1 = {
    "loss_scale": "loss_scale",
    "num_good_steps": "good_steps",
    "num_bad_steps": "bad_steps",
}
"""What the subclasses that scripts for TensorFlow 1 bring along call the state, after a `_`."""


class StatelessManager(LossScaleManager):
    """Immutable configuration; the first field is the initial loss scale.

    A subclass that overrides `get_loss_scale` or `update_loss_scale`, and not `next_state`, is
    driven by these two methods, as one of `LossScaleManager` is. In them `super()` is the rule of
    the class above, on a state of the manager's own: the optimizer's, or variables of the graph.
    """

    _fields: ClassVar[tuple[str, ...]]
    _by_methods: ClassVar[bool] = False
    _rule: ClassVar[Callable[..., ScaleState]]
    read_unbound = False
    """Whether somebody has read the scale before there was an optimizer: a constant."""
    graph_state: Any = None
    """The manager's own state in a graph of TensorFlow 1, or that of an optimizer to come."""
    _now: ScaleState | None = None
    _begun: ScaleState | None = None
    _xp: Any = None
    _kept: Any = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "next_state" in vars(cls):
            cls._by_methods = False
        elif {"get_loss_scale", "update_loss_scale"} & vars(cls).keys() and not cls._by_methods:
            cls._rule = cls.next_state
            cls.next_state = LossScaleManager.next_state  # type: ignore[method-assign]
            cls._by_methods = True

    def get_loss_scale(self) -> Any:
        """Return the optimizer's loss scale, or the initial one (float32) before there is any."""
        if self._by_methods:
            return self._loss_scale
        owner = self._bound_owner()
        if owner is not None:
            return owner.loss_scale
        if self._in_graph():
            return self.graph_state.loss_scale
        vars(self)["read_unbound"] = True
        return self._initial().loss_scale

    def update_loss_scale(self, finite_grads: Any) -> Any:
        """Move the state kept by the optimizer by one step.

        Args:
            finite_grads: Scalar bool, True if no gradient overflowed.

        Raises:
            RuntimeError: If no optimizer keeps the state.
        """
        if self._now is not None:
            vars(self)["_now"] = self._rule(self._now, finite_grads, self._xp)
            return self._now.loss_scale
        if self._by_methods and self._in_graph():
            return self.graph_state.move(self._rule, finite_grads)
        owner = self._bound_owner()
        if owner is None:
            raise RuntimeError(
                f"{self!r} keeps no state of its own. Attach it to an optimizer first, or call "
                "`next_state(state, finite, xp)`."
            )
        return owner.update_loss_scale(finite_grads)

    def initial_state(self) -> ScaleState:
        return super().initial_state() if self._has_own_scale() else self._initial()

    def get_config(self) -> dict[str, Any]:
        if any(name not in vars(self) for name in self._fields):  # a subclass' own `__init__`
            return super().get_config()
        return {name: getattr(self, name) for name in self._fields}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)

    def _initial(self) -> ScaleState:
        first = getattr(self, self._fields[0], 1.0)
        return ScaleState(np.float32(first), np.int32(0), np.int32(0))

    def _has_own_scale(self) -> bool:
        """Whether the scale in use is not that of the rule."""
        overridden = type(self).get_loss_scale is not StatelessManager.get_loss_scale
        return self._by_methods and (overridden or "_loss_scale" in vars(self))

    def _in_graph(self) -> bool:
        """Whether the state is in a graph, this manager's or that of an optimizer to come."""
        vars(self)["graph_state"] = graph_state_here(self.graph_state, self._initial())
        return self.graph_state is not None

    def _state(self) -> Any:
        """What has the numbers of the rule as `loss_scale`, `good_steps` and `bad_steps`."""
        if self._now is not None:
            return self._now
        if self._in_graph():
            return self.graph_state
        owner = None if self._has_own_scale() else self._bound_owner()
        return owner or self._kept or self._initial()

    def _reset_stats(self) -> Any:
        """Clears the counters, as it does in TensorFlow 1."""
        if self._now is None:
            return self.graph_state.reset() if self._in_graph() else None
        now = self._now
        vars(self)["_now"] = now._replace(
            good_steps=now.good_steps * 0, bad_steps=now.bad_steps * 0
        )
        return now.loss_scale

    def _begin_step(self, state: ScaleState, xp: Any) -> None:
        if self._has_own_scale():
            state = state._replace(loss_scale=(self._kept or self._initial()).loss_scale)
        vars(self).update(_now=state, _begun=state, _xp=xp)

    def _end_step(self, state: ScaleState, finite: Any, xp: Any) -> tuple[Any, Any]:
        now, begun, _ = (vars(self).pop(name) for name in ("_now", "_begun", "_xp"))
        if now is begun:  # the subclass has a rule of its own
            return count_step(state, finite, xp)
        if self._has_own_scale() and now.loss_scale > 0:  # no `if` while XLA's graph is traced
            vars(self)["_kept"] = now
        return now.good_steps, now.bad_steps

    def __getattr__(self, name: str) -> Any:
        plain = name[1:] if name.startswith("_") else ""
        if plain in _OF_TENSORFLOW_1:
            return getattr(self._state(), _OF_TENSORFLOW_1[plain])
        if plain in self._fields and plain in vars(self):
            return vars(self)[plain]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fields and name in self.__dict__:
            raise AttributeError(
                f"`{name}` cannot change after construction; construct a new "
                f"{type(self).__name__}, or assign `loss_scale` on the optimizer to move the scale "
                f"itself. Received: {name}={value!r}"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        given = (name for name in self._fields if name in vars(self))
        arguments = (f"{name}={getattr(self, name)!r}" for name in given)
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name, None) for name in self._fields)))
