# SPDX-License-Identifier: Apache-2.0
"""The loss scaling of one optimizer: its manager, its variables and what they have recorded."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras import unscaling
from npu_keras.journal import Journal
from npu_keras.loss_scale import FixedLossScaleManager, LossScaleManager
from npu_keras.overflow import INF_NAN, Finding, validate_mode
from npu_keras.protection import Protection
from npu_keras.state import StepState, VariableSpec


class LossScaling:
    """Everything about the loss scale that is the same for a wrapper, a mixin and every host.

    Args:
        manager: how the loss scale moves; None for an optimizer that does not scale, which then
            has the scale 1 and checks nothing.
        mode: `"inf_nan"` or `"saturation"`.
        create: makes a variable of the host.
        paths: gives the paths of the trained variables, in order.
    """

    def __init__(
        self,
        manager: LossScaleManager | None,
        mode: str,
        create: Callable[[VariableSpec], Any],
        paths: Callable[[], Sequence[str]],
    ) -> None:
        self.active = manager is not None
        self.manager = manager or FixedLossScaleManager(1, enable_overflow_check=False)
        self.mode = validate_mode(mode)
        initial = self.manager.initial_state()
        self.initial_scale = float(initial.loss_scale)
        self.state = StepState(create, initial)
        self.journal = Journal(self.state, paths)
        self.protection = Protection()
        self.scaled_a_loss = not self.active
        self._forward_finite: tf.Tensor | None = None
        self._finding: Finding | None = None

    def build(self, owner: Any, variable_count: int) -> None:
        """Ties the manager to the optimizer and creates what depends on its variables.

        Args:
            owner: the optimizer.
            variable_count: how many variables it trains.
        """
        self.manager.bind(owner)
        self.state.build(variable_count)

    def describe(self) -> dict[str, Any]:
        """Returns the settings by name, as text, for a comparison between ranks."""
        kind = type(self.manager).__name__
        settings = {"loss_scale_manager": kind, "overflow_mode": self.mode}
        with contextlib.suppress(NotImplementedError):  # not every manager can be saved
            own = self.manager.get_config()
            settings |= {f"{kind}.{name}": str(value) for name, value in own.items()}
        return settings

    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Multiplies the loss by the loss scale and notes whether it was finite.

        Args:
            loss: scalar tensor of any real dtype, or a number.
        """
        self.scaled_a_loss = True
        loss = tf.convert_to_tensor(loss)
        self._note_forward(loss)
        return unscaling.scale_loss(loss, self.state.loss_scale)

    def take_forward(self) -> tf.Tensor:
        """Returns whether the losses since the last step were finite, and forgets them."""
        noted, self._forward_finite = self._forward_finite, None
        return noted if noted is not None and _reachable(noted) else tf.constant(True)

    def note_finding(self, finding: Finding) -> None:
        """Keeps what was found in gradients before they were unscaled, for the next step."""
        self._finding = finding

    def take_finding(self) -> Finding | None:
        """Returns what `note_finding` has kept for this step, and forgets it."""
        noted, self._finding = self._finding, None
        return noted if noted is not None and _reachable(noted.overflowed) else None

    def _note_forward(self, loss: tf.Tensor) -> None:
        loss = loss if loss.dtype.is_floating else tf.cast(loss, tf.float32)
        finite = tf.reduce_all(tf.math.is_finite(loss))
        earlier = self._forward_finite
        if earlier is not None and _reachable(earlier):
            finite = tf.logical_and(finite, earlier)
        self._forward_finite = finite


Scaling = tuple[LossScaleManager, str]
"""A manager and an overflow mode, as the optimizer classes hand them on."""

UNSCALED = (None, INF_NAN)


def require_manager(manager: Any) -> LossScaleManager:
    """Returns the manager, or raises TypeError saying which ones there are."""
    if not isinstance(manager, LossScaleManager):
        raise TypeError(
            "`loss_scale_manager` must be a `npu_keras.LossScaleManager`, for example "
            "`FixedLossScaleManager(1024)` or `ExponentialUpdateLossScaleManager(2**15, 2000)`. "
            f"Received: loss_scale_manager={manager!r}"
        )
    return manager


def _reachable(tensor: tf.Tensor) -> bool:
    """Whether a tensor made earlier can be used here: the same graph, or eagerly in both."""
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    return tf.is_symbolic_tensor(tensor) and tensor.graph is tf.compat.v1.get_default_graph()
