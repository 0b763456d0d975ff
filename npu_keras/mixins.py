# SPDX-License-Identifier: Apache-2.0
"""What every loss-scaled optimizer has, whatever its host: state, journal and the step itself.

A flavour derives a host class from `StepMixin` and fills in the few hooks that know the host's
names; see `npu_keras.host` for Keras 3.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras import step as order
from npu_keras.journal import Journal
from npu_keras.loss_scale import LossScaleManager
from npu_keras.overflow import Gradient, OverflowCheck, validate_mode
from npu_keras.protection import Protection
from npu_keras.state import StepState, VariableSpec


def require_manager(manager: Any) -> LossScaleManager:
    """Returns the manager, or raises TypeError saying which ones there are."""
    if not isinstance(manager, LossScaleManager):
        raise TypeError(
            "`loss_scale_manager` must be a `npu_keras.LossScaleManager`, for example "
            "`FixedLossScaleManager(1024)` or `ExponentialUpdateLossScaleManager(2**15, 2000)`. "
            f"Received: loss_scale_manager={manager!r}"
        )
    return manager


class StepMixin:
    """State and step of a loss-scaled optimizer; the hooks at the end belong to the host."""

    def _init_step(self, manager: LossScaleManager, overflow_mode: str) -> None:
        self._loss_scale_manager = require_manager(manager)
        self._overflow_mode = validate_mode(overflow_mode)
        self._step_state = StepState(self._create_state_variable, manager.initial_state())
        self._step_journal = Journal(self._step_state, self._variable_paths)
        self._protection = Protection()
        self._scaled_a_loss = False
        self._forward_finite: tf.Tensor | None = None

    def _build_step(self, variable_count: int) -> None:
        self._loss_scale_manager.bind(self)
        self._step_state.build(variable_count)

    @property
    def loss_scale_manager(self) -> LossScaleManager:
        """The manager: how the loss scale moves."""
        return self._loss_scale_manager

    @property
    def overflow_mode(self) -> str:
        """`"inf_nan"` or `"saturation"`: how an overflow is recognised."""
        return self._overflow_mode

    @property
    def loss_scale(self) -> Any:
        """float32 scalar variable: the factor on the loss of the next step."""
        return self._step_state.loss_scale

    @property
    def good_steps(self) -> Any:
        """Integer scalar variable: consecutive finite steps since the scale last moved."""
        return self._step_state.good_steps

    @property
    def bad_steps(self) -> Any:
        """Integer scalar variable: overflows since the scale last moved."""
        return self._step_state.bad_steps

    @property
    def attempted_steps(self) -> Any:
        """Integer scalar variable: steps tried, skipped ones included."""
        return self._step_state.attempted_steps

    @property
    def skipped_steps(self) -> Any:
        """Integer scalar variable: steps skipped because of an overflow."""
        return self._step_state.skipped_steps

    @property
    def last_step_finite(self) -> Any:
        """bool scalar variable: whether the last step was applied (True before the first)."""
        return self._step_state.last_step_finite

    @property
    def journal(self) -> Journal:
        """What happened: `journal.drain()` returns the events since the last call."""
        return self._step_journal

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
        return self._protection.add(variables)

    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Multiplies the loss by the loss scale, in float32 at least.

        Keras calls it in `fit`; call it in a custom `train_step` or tape loop, inside the tape.

        Args:
            loss: scalar tensor of any real dtype, or a number.

        Returns:
            float32 scalar (float64 for a float64 loss).
        """
        self._scaled_a_loss = True
        loss = tf.convert_to_tensor(loss)
        self._note_forward(loss)
        return order.scale_loss(loss, self.loss_scale)

    def update_loss_scale(self, finite_grads: Any) -> tf.Tensor:
        """Moves the scale by hand by one step, without touching weights.

        Args:
            finite_grads: bool scalar, True if no gradient overflowed.

        Returns:
            The new loss scale, float32 scalar.
        """
        return order.move_scale(self._step, finite_grads)

    @property
    def _step(self) -> order.Step:
        check = OverflowCheck(self._overflow_mode, self._compute_dtype())
        return order.Step(self._loss_scale_manager, check, self._step_state, self._protection)

    def _take_step(self, gradients: Sequence[Gradient | None], variables: Sequence[Any]) -> None:
        positions = [self._position(variable) for variable in variables]
        present = order.present_gradients(gradients, positions)
        self._warn_if_never_scaled()
        kept = [index for index, gradient in enumerate(gradients) if gradient is not None]

        def update(unscaled: list[Gradient]) -> None:
            every: list[Gradient | None] = [None] * len(variables)
            for index, gradient in zip(kept, unscaled, strict=True):
                every[index] = gradient
            self._update(every, variables)

        def unscaled(gradients: list[Gradient], scale: tf.Tensor) -> list[Gradient]:
            pairs = zip(gradients, (variables[index] for index in kept), strict=True)
            return [g if self._takes_raw(v) else order.unscale(g, scale) for g, v in pairs]

        order.take_step(
            self._step, present, update, unscaled=unscaled, forward_finite=self._take_forward()
        )

    def _warn_if_never_scaled(self) -> None:
        if self._scaled_a_loss:
            return
        self._scaled_a_loss = True  # warn once
        warnings.warn(
            f"{type(self).__name__} divides gradients by the loss scale, but no loss went through "
            "its `scale_loss`, so updates come out too small by that factor. In a custom "
            "`train_step` or tape loop write `loss = optimizer.scale_loss(loss)` inside the tape.",
            stacklevel=4,
        )

    def _note_forward(self, loss: tf.Tensor) -> None:
        loss = loss if loss.dtype.is_floating else tf.cast(loss, tf.float32)
        finite = tf.reduce_all(tf.math.is_finite(loss))
        earlier = self._forward_finite
        if earlier is not None and _reachable(earlier):
            finite = tf.logical_and(finite, earlier)
        self._forward_finite = finite

    def _take_forward(self) -> tf.Tensor:
        noted, self._forward_finite = self._forward_finite, None
        return noted if noted is not None and _reachable(noted) else tf.constant(True)

    # Hooks of the host.

    def _create_state_variable(self, spec: VariableSpec) -> Any:
        raise NotImplementedError

    def _update(self, gradients: Sequence[Gradient | None], variables: Sequence[Any]) -> None:
        raise NotImplementedError

    def _position(self, variable: Any) -> int:
        raise NotImplementedError

    def _takes_raw(self, variable: Any) -> bool:
        raise NotImplementedError

    def _variable_paths(self) -> list[str]:
        raise NotImplementedError

    def _compute_dtype(self) -> str:
        raise NotImplementedError


def _reachable(tensor: tf.Tensor) -> bool:
    """Whether a tensor made earlier can be used here: the same graph, or eagerly in both."""
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    return tf.is_symbolic_tensor(tensor) and tensor.graph is tf.compat.v1.get_default_graph()
