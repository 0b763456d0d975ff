# SPDX-License-Identifier: Apache-2.0
"""The constructors of the three optimizers, the same in every flavour.

A flavour's class derives from one of these and from its wrapper, which has `_init_wrapper`.
"""

from typing import Any

from npu_keras._arguments import flag, require_known
from npu_keras.aggregation import GradientAggregation, settings_of
from npu_keras.flags import aggregation_in_force, manager_in_force, tail_in_force
from npu_keras.loss_scale import LossScaleManager
from npu_keras.mixins import StepMixin
from npu_keras.overflow import INF_NAN
from npu_keras.scaling import UNSCALED, require_manager


class Constructed(StepMixin):
    """What the constructors need of a flavour's wrapper."""

    inner_optimizer: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuses keywords that there are not; Python would name a base class in the error."""
        require_known(cls, kwargs)
        return super().__new__(cls)

    def _init_wrapper(
        self,
        opt: Any,
        name: str,
        scaling: tuple[Any, str] = UNSCALED,
        aggregation: GradientAggregation | None = None,
    ) -> None:
        raise NotImplementedError

    def _arguments(self) -> dict[str, Any]:
        """Returns the constructor's arguments by name."""
        raise NotImplementedError


class ConstructedWithScale(Constructed):
    """`NPULossScaleOptimizer(opt, loss_scale_manager, is_distributed, *, overflow_mode)`."""

    def __init__(
        self,
        opt: Any,
        loss_scale_manager: LossScaleManager,
        is_distributed: bool = False,
        *,
        overflow_mode: str = INF_NAN,
    ) -> None:
        is_distributed = flag("is_distributed", is_distributed)
        scaling = (require_manager(loss_scale_manager), overflow_mode)
        self._init_wrapper(opt, type(self).__name__, scaling)
        self.is_distributed = is_distributed
        self._decides_together |= self.is_distributed

    def _arguments(self) -> dict[str, Any]:
        return {
            "opt": self.inner_optimizer,
            "loss_scale_manager": self.loss_scale_manager,
            "is_distributed": self.is_distributed,
            "overflow_mode": self.overflow_mode,
        }


class ConstructedByFlags(Constructed):
    """`NPUOptimizer(opt, loss_scale_manager, is_distributed, is_loss_scale, ...)`."""

    def __init__(
        self,
        opt: Any,
        loss_scale_manager: LossScaleManager | None = None,
        is_distributed: bool = False,
        is_loss_scale: bool = False,
        is_tailing_optimization: bool = False,
        name: str | None = None,
        *,
        overflow_mode: str = INF_NAN,
        aggregation: GradientAggregation | None = None,
    ) -> None:
        is_distributed = flag("is_distributed", is_distributed)
        is_loss_scale = flag("is_loss_scale", is_loss_scale)
        is_tailing_optimization = flag("is_tailing_optimization", is_tailing_optimization)
        manager = manager_in_force(loss_scale_manager, is_loss_scale)
        aggregation = aggregation_in_force(aggregation, is_distributed)
        overlaps_tail = tail_in_force(is_tailing_optimization, is_distributed)
        name = _name(name) or f"NPUOptimizer{type(opt).__name__}"
        self._init_wrapper(opt, name, (manager, overflow_mode), aggregation)
        self._given_name = name
        self._given_manager = loss_scale_manager
        self._given_mode = overflow_mode
        self.is_distributed = is_distributed
        self.is_loss_scale = is_loss_scale
        self.is_tailing_optimization = is_tailing_optimization
        self._overlaps_tail |= overlaps_tail

    def _arguments(self) -> dict[str, Any]:
        return {
            "opt": self.inner_optimizer,
            "loss_scale_manager": self._given_manager,
            "is_distributed": self.is_distributed,
            "is_loss_scale": self.is_loss_scale,
            "is_tailing_optimization": self.is_tailing_optimization,
            "name": self._given_name,
            "overflow_mode": self._given_mode,
            "aggregation": self._aggregation if self.is_distributed else None,
        }


class ConstructedWithRanks(Constructed):
    """`NPUDistributedOptimizer(optimizer, is_weight_update_sharding, name, *, aggregation)`."""

    _no_sharding = ""

    def __init__(
        self,
        optimizer: Any,
        is_weight_update_sharding: bool = False,
        name: str | None = None,
        *,
        aggregation: GradientAggregation | None = None,
    ) -> None:
        is_weight_update_sharding = flag("is_weight_update_sharding", is_weight_update_sharding)
        if is_weight_update_sharding:
            self._check_sharded(optimizer)
        name = _name(name) or f"Distributed{type(optimizer).__name__}"
        self._init_wrapper(optimizer, name, aggregation=settings_of(aggregation))
        self._given_name = name
        self.is_weight_update_sharding = is_weight_update_sharding

    def _check_sharded(self, optimizer: Any) -> None:
        """Raises an error where the flavour, or this optimizer inside, cannot be sharded."""
        raise ValueError(f"{self._no_sharding} Received: is_weight_update_sharding=True")

    def _arguments(self) -> dict[str, Any]:
        return {
            "optimizer": self.inner_optimizer,
            "is_weight_update_sharding": self.is_weight_update_sharding,
            "name": self._given_name,
            "aggregation": self._aggregation,
        }


# What Python's own errors about arguments call them.
ConstructedWithScale.__init__.__qualname__ = "NPULossScaleOptimizer.__init__"
ConstructedByFlags.__init__.__qualname__ = "NPUOptimizer.__init__"
ConstructedWithRanks.__init__.__qualname__ = "NPUDistributedOptimizer.__init__"


def _name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"`name` must be a string or None. Received: name={name!r}")
    return name
