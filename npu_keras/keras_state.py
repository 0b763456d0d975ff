# SPDX-License-Identifier: Apache-2.0
"""The state of a Keras 3 host: how it is read, and what Keras calls it."""

from typing import Any

import keras
import numpy as np

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
