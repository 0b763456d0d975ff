# SPDX-License-Identifier: Apache-2.0
"""What every loss-scaled optimizer has, whatever its host: state, journal and the step itself.

A flavour derives a host class from `StepMixin` and fills in the few hooks that know the host's
names; see `npu_keras.host` for Keras 3.
"""

import functools
import logging
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from npu_keras import engines
from npu_keras import step as order
from npu_keras.accumulation import Window, take_accumulated_step
from npu_keras.aggregating import Aggregating, DecidingTogether
from npu_keras.aggregation import GradientAggregation
from npu_keras.channels import Alone, Channel, GradientList, Replicas
from npu_keras.engines.strategy import replicas_in_sync
from npu_keras.execution import Compilation
from npu_keras.members import LossScaleMembers
from npu_keras.overflow import CheckedBefore, OverflowCheck
from npu_keras.sparse import Gradient
from npu_keras.unscaling import present_gradients

logger = logging.getLogger("npu_keras")


class StepMixin(LossScaleMembers):
    """State and step of an optimizer; the hooks at the end belong to the host."""

    _owns_scaling = True
    _is_inner = False
    _aggregation: GradientAggregation | None = None
    _decides_together = False
    _overlaps_tail = False
    _channels: Mapping[bool, Channel] = MappingProxyType({})  # by whether all is aggregated
    _told_obstacle = False
    _how_to_scale = (
        "In a custom `train_step` or tape loop write `loss = optimizer.scale_loss(loss)` inside "
        "the tape."
    )

    def _take_step(
        self,
        gradients: Sequence[Gradient | None],
        variables: Sequence[Any],
        *,
        unscaled: bool = False,
        aggregated: bool = False,
    ) -> None:
        """Takes one step.

        Args:
            gradients: one entry per variable.
            variables: the variables.
            unscaled: whether the gradients are without the loss scale already.
            aggregated: whether they have been aggregated over ranks or replicas already.
        """
        positions = [self._position(variable) for variable in variables]
        own = present_gradients(gradients, positions)
        self._warn_if_never_scaled()
        channel = self._current_channel(aggregated)
        channel.prepare(self._trained_variables(), self._own_variables(), self._scaling.describe)
        take = order.take_step
        window = self._window(own.positions) if channel.size > 1 else None
        if window is not None:
            self._refuse_fp16_sums("Accumulated gradients")
            take = functools.partial(take_accumulated_step, window=window)
        step = self._step(channel)._replace(compilation=self._compilation())
        if unscaled and self._scaling.active:
            self._refuse_fp16_sums("Unscaled gradients")
            step = step._replace(check=CheckedBefore(self._scaling.take_finding()))
        takes_raw = (lambda position: True) if unscaled else self._takes_raw
        if self._observer is not None:
            self._observer.look(own, self._scaling.state, takes_raw)
        take(
            step,
            own,
            update=self._update_positions,
            takes_raw=takes_raw,
            forward_finite=self._scaling.take_forward(),
        )
        self._after_step()

    def _refuse_fp16_sums(self, what: str) -> None:
        if self._aggregation is not None and self._aggregation.compression == "fp16":
            raise ValueError(
                f"{what} are sent without the loss scale, for which float16 is too narrow. Use "
                '`compression="bf16"` or None for them.'
            )

    def _step(self, channel: Channel) -> order.Step:
        scaling = self._scaling
        return order.Step(
            manager=scaling.manager,
            check=self._check(),
            state=scaling.state,
            protection=scaling.protection,
            channel=channel,
            overlap_tail=self._overlaps_tail and self._tail_is_free(channel),
        )

    def _compilation(self) -> Compilation:
        return Compilation(
            obstacle=self._compilation_obstacle(),
            by_methods=self._writes_by_methods(),
            by_parts=self._tail_obstacle() is None,
            variables=lambda: [*self._trained_variables(), *self._written_variables()],
        )

    def _written_variables(self) -> list[Any]:
        return [*self._own_variables(), *self._scaling.protection.variables()]

    def _check(self) -> OverflowCheck:
        return OverflowCheck(self._scaling.mode, self._compute_dtype())

    def _tail_is_free(self, channel: Channel) -> bool:
        obstacle = self._tail_obstacle()
        if channel.may_overflow:
            obstacle = "a sum can overflow on the way, so that all of it has to arrive first"
        if obstacle and not self._told_obstacle:
            self._told_obstacle = True
            logger.info("is_tailing_optimization has nothing to overlap: %s", obstacle)
        return obstacle is None and channel.size > 1

    def _current_channel(self, aggregated: bool = False) -> Channel:
        if replicas_in_sync() > 1:
            return Replicas(aggregated=aggregated)
        if aggregated not in self._channels:
            # Past `__setattr__`, which would track it for checkpoints.
            vars(self)["_channels"] = {**self._channels, aggregated: self._make_channel(aggregated)}
        return self._channels[aggregated]

    def _make_channel(self, aggregated: bool) -> Channel:
        if self._aggregation is not None:
            engine = self._aggregation.engine()
            if engine.size > 1 and not aggregated:
                return Aggregating(self._aggregation, engine, self._trained_variables())
            if engine.size > 1:
                return DecidingTogether(engine)
        elif self._decides_together and engines.find().size > 1:
            return DecidingTogether(engines.find())
        return Alone()

    def _update_positions(self, gradients: GradientList, *, last: bool) -> None:
        trained = self._trained_variables()
        self._update(gradients.gradients, [trained[p] for p in gradients.positions], last=last)

    def _warn_if_never_scaled(self) -> None:
        if self._scaling.scaled_a_loss:
            return
        self._scaling.scaled_a_loss = True  # warn once
        warnings.warn(
            f"{type(self).__name__} divides gradients by the loss scale, but no loss went through "
            f"its `scale_loss`, so updates come out too small by that factor. {self._how_to_scale}",
            stacklevel=4,
        )

    def _warn_if_unguarded(self) -> None:
        if self._scaling.active or self._is_inner or self._compute_dtype() != "float16":
            return
        warnings.warn(
            f"The dtype policy computes in float16, but {type(self).__name__} does not scale the "
            "loss: nothing guards small gradients from becoming 0, nor the weights from "
            "infinities. Use `NPUOptimizer(..., loss_scale_manager, is_loss_scale=True)`, "
            "`NPULossScaleOptimizer` or `LossScaleMixin`.",
            stacklevel=4,
        )

    # Hooks of the host.

    def _update(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], *, last: bool = True
    ) -> None:
        """Updates variables with unscaled gradients; `last` once in a step."""
        raise NotImplementedError

    def _window(self, positions: Sequence[int]) -> Window | None:
        """Returns the sums of gradients of a host that accumulates them, else None."""
        raise NotImplementedError

    def _after_step(self) -> None:
        raise NotImplementedError

    def _tail_obstacle(self) -> str | None:
        """Returns why an update cannot be made part by part, or None if it can."""
        raise NotImplementedError

    def _compilation_obstacle(self) -> str | None:
        """Returns why an update is better not compiled, or None if it can be."""
        raise NotImplementedError

    def _writes_by_methods(self) -> bool:
        """Whether an update is known to write variables by their methods alone."""
        raise NotImplementedError

    def _trained_variables(self) -> list[Any]:
        raise NotImplementedError

    def _own_variables(self) -> list[Any]:
        raise NotImplementedError

    def _position(self, variable: Any) -> int:
        raise NotImplementedError

    def _takes_raw(self, position: int) -> bool:
        raise NotImplementedError

    def _compute_dtype(self) -> str:
        raise NotImplementedError
