# SPDX-License-Identifier: Apache-2.0
"""The state of a Keras 3 host: how it is read, what Keras calls it, how it is saved."""

import warnings
from typing import Any

import keras
import numpy as np

from npu_keras.journal import read
from npu_keras.scaling import LossScaling


class StateVariable(keras.Variable):
    """A Keras variable whose value can be read as a number under a strategy as well."""

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)


class KerasNames:
    """The names `keras.optimizers.LossScaleOptimizer` has for the same things."""

    _scaling: LossScaling

    @property
    def dynamic_scale(self) -> Any:
        """Keras' name for `loss_scale`."""
        return self._scaling.state.loss_scale

    @property
    def step_counter(self) -> Any:
        """Keras' name for `good_steps`."""
        return self._scaling.state.good_steps

    @property
    def loss_scale_factor(self) -> None:
        """None: the loss scale is the manager's. Keras' wrapper writes it, which is refused."""
        return None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        self._refuse_loss_scale_factor(value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_scale_factor":
            # Keras 3.15.1 passes over an assignment of the value that is there already.
            self._refuse_loss_scale_factor(value)
        else:
            super().__setattr__(name, value)

    def _refuse_loss_scale_factor(self, value: float | None) -> None:
        if getattr(self, "_constructed", False):
            raise TypeError(
                f"{type(self).__name__} cannot be wrapped in Keras' loss scaler, in which every "
                "rank decides for itself. If it scales the loss already, pass it to "
                "`model.compile` as it is; if not, put it into `NPULossScaleOptimizer`."
            )
        if value is not None:
            raise ValueError(
                "A loss-scaled optimizer takes its loss scale from the manager. Received: "
                f"loss_scale_factor={value}. Use `FixedLossScaleManager({value})` instead."
            )


class SavedByPosition:
    """Saves variables by position, and keeps what is loaded before there are variables."""

    _pending_store: dict[str, np.ndarray] | None = None

    def _stored_variables(self) -> list[Any]:
        return list(self.variables)  # type: ignore[attr-defined]

    def save_own_variables(self, store: Any) -> None:
        """Writes variables by position.

        Args:
            store: mapping of position to value.
        """
        for position, variable in enumerate(self._stored_variables()):
            store[str(position)] = read(variable)

    def load_own_variables(self, store: Any) -> None:
        """Loads variables by position, at once or, before `build`, when it is built.

        Args:
            store: mapping of position to value.
        """
        if not self.built:  # type: ignore[attr-defined]
            self._pending_store = copied(store)
            return
        variables = self._stored_variables()
        if len(store) != len(variables):
            warnings.warn(
                f"Nothing was loaded into {type(self).__name__}: it has {len(variables)} "
                f"variables, the file has {len(store)} for it.",
                stacklevel=2,
            )
            return
        for position, variable in enumerate(variables):
            variable.assign(np.asarray(store[str(position)]))

    def _load_pending(self) -> None:
        pending, self._pending_store = self._pending_store, None
        if pending:
            self.load_own_variables(pending)


def copied(store: Any) -> dict[str, np.ndarray]:
    """Copies a store of Keras, which can be indexed but not iterated over."""
    return {key: np.array(store[key]) for key in store.keys()}  # noqa: SIM118
