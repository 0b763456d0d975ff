# SPDX-License-Identifier: Apache-2.0
"""A step around an inner Keras 3 optimizer: the common part of the wrapper classes."""

from collections.abc import Sequence
from typing import Any

import keras
from keras.optimizers import LossScaleOptimizer

from npu_keras.aggregation import GradientAggregation
from npu_keras.constructors import Constructed
from npu_keras.forwarding import Forwarding, forward
from npu_keras.host import KerasHost, revive
from npu_keras.inputs import learning_rate as checked_rate
from npu_keras.nesting import KERAS_3, adopt, claim, scales_already, wrong_optimizer
from npu_keras.saved_state import SavedAroundInner
from npu_keras.scaling import UNSCALED
from npu_keras.sparse import Gradient

FORWARDED = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "gradient_accumulation_steps",
)
"""Settings that every Keras 3 optimizer has and that only mean something on the inner one."""


class WrapperHost(SavedAroundInner, Forwarding, KerasHost, Constructed):
    """A loss-scaled step around an inner optimizer, which does the updating."""

    def _init_wrapper(
        self,
        opt: Any,
        name: str,
        scaling: tuple[Any, str] = UNSCALED,
        aggregation: GradientAggregation | None = None,
    ) -> None:
        _require_optimizer(opt, type(self).__name__)
        super(LossScaleOptimizer, self).__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = opt
        adopt(self, opt, scaling, aggregation)
        self._init_host(scaling)
        claim(opt, self)
        updating = self._updating_optimizer()
        if self._scaling.active and not isinstance(updating, KerasHost):
            # The manager's scale takes its place, or gradients would be unscaled twice.
            updating.loss_scale_factor = None

    def _target(self) -> Any:
        return self.inner_optimizer

    def _updating_optimizer(self) -> Any:
        inner = self.inner_optimizer
        return inner._updating_optimizer() if isinstance(inner, KerasHost) else inner

    def _own_variables(self) -> list[Any]:
        inner = self.inner_optimizer
        common = inner._own_variables() if isinstance(inner, KerasHost) else inner.variables
        return [*self._variables, *common]

    def _after_step(self) -> None:
        if isinstance(self.inner_optimizer, KerasHost):
            self.inner_optimizer._after_step()

    def _compilation_obstacle(self) -> str | None:
        if isinstance(self.inner_optimizer, KerasHost):
            return self.inner_optimizer._compilation_obstacle()
        return super()._compilation_obstacle()

    def _writes_by_methods(self) -> bool:
        if isinstance(self.inner_optimizer, KerasHost):
            return self.inner_optimizer._writes_by_methods()
        return super()._writes_by_methods()

    def _apply_target(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> None:
        if isinstance(self.inner_optimizer, KerasHost):  # its step is taken here
            self.inner_optimizer._apply_target(gradients, variables)
        else:
            super()._apply_target(gradients, variables)

    def _build_target(self, variables: list[Any]) -> None:
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        # What the base class' `build` does, less the slots, which belong to the inner optimizer.
        # Past `__setattr__`, whose tracking would make the weights variables of the optimizer.
        indices = {self._var_key(v): i for i, v in enumerate(variables)}
        self.__dict__.update(_trainable_variables=variables, _trainable_variables_indices=indices)
        self.built = True

    @property
    def variables(self) -> list[Any]:
        """The state of the loss scale, then the inner optimizer's variables."""
        return [*self._variables, *self.inner_optimizer.variables]

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = checked_rate(learning_rate)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from the inner optimizer's weight decay.

        Args:
            var_list: variables to exclude.
            var_names: strings; variables whose name contains one are excluded.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies the loss by the loss scale, in float32 at least; see `LossScaleMixin`."""
        if self._scaling.active:
            return super().scale_loss(loss)
        return self.inner_optimizer.scale_loss(loss)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, JSON-safe."""
        arguments = self._arguments()
        return {name: keras.saving.serialize_keras_object(arguments[name]) for name in arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from `get_config`'s result, which is left as it is."""
        config = dict(config)
        for key in ("opt", "optimizer", "loss_scale_manager", "aggregation"):
            if key in config:
                config[key] = revive(config[key], custom_objects)
        return cls(**config)


forward(WrapperHost, FORWARDED)


def _require_optimizer(opt: Any, wrapper: str) -> None:
    if isinstance(opt, LossScaleOptimizer) and not isinstance(opt, KerasHost):
        raise scales_already(opt, wrapper)
    if not isinstance(opt, keras.optimizers.Optimizer):
        raise wrong_optimizer(opt, KERAS_3, "keras.optimizers.Adam(1e-3)")
