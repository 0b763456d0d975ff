# SPDX-License-Identifier: Apache-2.0
"""What can be read of a loss-scaled optimizer, and asked of it, whatever its host."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from npu_keras import step as order
from npu_keras.distribution import GradientObserver
from npu_keras.inputs import flag_tensor, loss_tensor
from npu_keras.journal import Journal
from npu_keras.loss_scale import LossScaleManager
from npu_keras.scaling import LossScaling
from npu_keras.state import readable


class LossScaleMembers:
    """Loss scale, counters and journal of an optimizer."""

    _scaling: LossScaling
    _observer: GradientObserver | None = None

    @property
    def loss_scale_manager(self) -> LossScaleManager:
        """The manager: how the loss scale moves."""
        return self._scaling.manager

    @property
    def overflow_mode(self) -> str:
        """`"inf_nan"` or `"saturation"`: how an overflow is recognised."""
        return self._scaling.mode

    @property
    def loss_scale(self) -> Any:
        """float32 scalar variable: the factor on the loss of the next step."""
        return readable(self._scaling.state.loss_scale)

    @property
    def good_steps(self) -> Any:
        """Integer scalar variable: consecutive finite steps since the scale last moved."""
        return readable(self._scaling.state.good_steps)

    @property
    def bad_steps(self) -> Any:
        """Integer scalar variable: overflows since the scale last moved."""
        return readable(self._scaling.state.bad_steps)

    @property
    def initial_scale(self) -> float:
        """The loss scale of the first step."""
        return self._scaling.initial_scale

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Finite steps in a row until the scale grows; None when it never does."""
        return getattr(self._scaling.manager, "incr_every_n_steps", None)

    @property
    def attempted_steps(self) -> Any:
        """Integer scalar variable: steps tried, skipped ones included."""
        return readable(self._scaling.state.attempted_steps)

    @property
    def skipped_steps(self) -> Any:
        """Integer scalar variable: steps skipped because of an overflow."""
        return readable(self._scaling.state.skipped_steps)

    @property
    def last_step_finite(self) -> Any:
        """bool scalar variable: whether the last step was applied (True before the first)."""
        return readable(self._scaling.state.last_step_finite)

    @property
    def journal(self) -> Journal:
        """What happened: `journal.drain()` returns the events since the last call."""
        return self._scaling.journal

    def protect(self, variables: Iterable[Any]) -> bool:
        """Keeps the values of variables that the forward pass writes safe from skipped steps.

        After each applied step their values are remembered; a skipped step puts them back. Meant
        for batch-normalisation statistics, seed states and the running loss, and called for these
        by `npu_keras.callbacks.LossScaleLogger`. Call it again after resetting one from outside.

        Args:
            variables: Keras or TensorFlow variables of any shape and dtype.

        Returns:
            True when a variable was added. A step traced before does not know of it: trace anew
            (`model.make_train_function(force=True)`).
        """
        return self._scaling.protection.add(variables)

    def observe(self, observer: GradientObserver | None) -> None:
        """Lets an observer look at the gradients of each step before they are aggregated.

        For `npu_keras.callbacks.DistributionReport`. A step traced before does not know of it:
        trace anew (`model.make_train_function(force=True)`).

        Args:
            observer: takes the place of the one before; None for no observer.
        """
        vars(self)["_observer"] = observer  # past `__setattr__`, which would track it

    @tf.autograph.experimental.do_not_convert
    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Multiplies the loss by the loss scale, in float32 at least.

        Keras calls it in `fit`; call it in a custom `train_step` or tape loop, inside the tape.

        Args:
            loss: scalar tensor of any real dtype, or a number.

        Returns:
            float32 scalar (float64 for a float64 loss).

        Raises:
            TypeError: for a loss that is none.
        """
        return self._scaling.scale_loss(loss_tensor(loss))

    def update_loss_scale(self, finite_grads: Any) -> tf.Tensor:
        """Moves the scale by hand by one step, without touching weights.

        Args:
            finite_grads: bool scalar, True if no gradient overflowed.

        Returns:
            The new loss scale, float32 scalar.
        """
        finite = flag_tensor("`finite_grads`", finite_grads)
        return order.move_scale(self._scaling.manager, self._scaling.state, finite)
