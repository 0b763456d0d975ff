# SPDX-License-Identifier: Apache-2.0
"""A step around an inner tf_keras optimizer: the common part of the wrapper classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from npu_keras._upstream_tf_keras import aggregates_by_itself, fresh_children, is_legacy
from npu_keras.aggregation import GradientAggregation
from npu_keras.constructors import Constructed
from npu_keras.forwarding import Forwarding, forward
from npu_keras.nesting import TF_KERAS, adopt, claim, scales_already, was_claimed, wrong_optimizer
from npu_keras.saved_state import SavedAroundInner
from npu_keras.scaling import UNSCALED
from npu_keras.tf_keras.host import TfKerasHost
from npu_keras.tf_keras.interface import Pairs
from npu_keras.tf_keras.revive import revived_settings, serialized

FORWARDED = (
    "learning_rate",
    "lr",
    "iterations",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "jit_compile",
)
"""What tf_keras optimizers have and only means something on the inner one."""


class CallableList(list[Any]):
    """A list for those who write `optimizer.variables` and those who write `.variables()`."""

    def __call__(self) -> "CallableList":
        """Returns the list."""
        return self


class TfKerasWrapper(
    SavedAroundInner, Forwarding, TfKerasHost, Constructed, tf_keras.optimizers.Optimizer
):
    """A loss-scaled step around an inner optimizer, new or legacy, which does the updating."""

    inner_optimizer: Any = None

    def _init_wrapper(
        self,
        opt: Any,
        name: str,
        scaling: tuple[Any, str] = UNSCALED,
        aggregation: GradientAggregation | None = None,
    ) -> None:
        _require_optimizer(opt, type(self).__name__)
        # Past the constructor of the base class, which makes a counter that the inner one has.
        self.name = name
        self._variables: list[tf.Variable] = []
        self._mesh, self._run_with_dtensor = None, False
        self.inner_optimizer = opt
        adopt(self, opt, scaling, aggregation)
        self._init_host(scaling)
        claim(opt, self)
        if not isinstance(opt, TfKerasHost):  # which refuses by itself
            opt._is_wrapped_by_loss_scale_optimizer = True  # or tf_keras' own would wrap it, too

    def _target(self) -> Any:
        return self.inner_optimizer

    def _updating_optimizer(self) -> Any:
        inner = self.inner_optimizer
        return inner._updating_optimizer() if isinstance(inner, TfKerasHost) else inner

    def _keep_state_variable(self, name: str, variable: tf.Variable) -> None:
        setattr(self, name, variable)
        self._variables.append(variable)

    def _build_target(self, variables: list[Any]) -> None:
        if isinstance(self.inner_optimizer, TfKerasHost):
            self.inner_optimizer.build(variables)
        else:
            super()._build_target(variables)

    def _gradients_of(self, loss: Any, variables: list[Any], tape: Any, grad_loss: Any) -> Pairs:
        inner = self.inner_optimizer
        if isinstance(inner, TfKerasHost):  # its loss scale is in `loss` already
            return inner._gradients_of(loss, variables, tape, grad_loss)
        return super()._gradients_of(loss, variables, tape, grad_loss)

    def _writes_by_methods(self) -> bool:
        if isinstance(self.inner_optimizer, TfKerasHost):
            return self.inner_optimizer._writes_by_methods()
        return super()._writes_by_methods()

    def _apply_target(self, pairs: Pairs) -> None:
        if isinstance(self.inner_optimizer, TfKerasHost):  # its step is taken here
            self.inner_optimizer._apply_target(pairs)
        else:
            super()._apply_target(pairs)

    def _after_step(self) -> None:
        if isinstance(self.inner_optimizer, TfKerasHost):
            self.inner_optimizer._after_step()

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies the loss by the loss scale, in float32 at least; see `get_scaled_loss`."""
        if self._scaling.active or not isinstance(self.inner_optimizer, TfKerasHost):
            return super().scale_loss(loss)
        return self.inner_optimizer.scale_loss(loss)

    @property
    def variables(self) -> Any:
        """The state of the loss scale, then the inner optimizer's variables."""
        inner = self.inner_optimizer.variables
        return CallableList([*self._variables, *(inner() if callable(inner) else inner)])

    @property
    def weights(self) -> list[Any]:
        """All variables; the name legacy optimizers have for them."""
        return list(self.variables)

    def get_weights(self) -> list[np.ndarray]:
        """Returns the values of all variables."""
        return [variable.numpy() for variable in self.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all variables.

        Args:
            weights: one array per variable, in the order of `variables`.

        Raises:
            ValueError: if their number or a shape does not match.
        """
        variables = list(self.variables)
        shapes = [tuple(v.shape) for v in variables], [np.shape(weight) for weight in weights]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{type(self).__name__} has variables of the shapes {shapes[0]}. "
                f"Received: weights of the shapes {shapes[1]}"
            )
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets final values, such as moving averages, at the end of training."""
        if not is_legacy(self._updating_optimizer()):
            self.inner_optimizer.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from the inner optimizer's weight decay; see tf_keras."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def _stored_variables(self) -> list[Any]:
        # tf_keras walks on to a new optimizer inside and stores that, but not to a legacy one.
        inner = self.inner_optimizer
        return [*self._variables, *(inner.weights if is_legacy(inner) else ())]

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        children = fresh_children(self, super()._trackable_children, save_type, **kwargs)
        if save_type == "savedmodel":
            # A SavedModel is read into a plain tf_keras optimizer, which has a counter of its own.
            children.setdefault("_iterations", self.iterations)
        return children

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, JSON-safe."""
        return {name: serialized(value) for name, value in self._arguments().items()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from `get_config`'s result, which is left as it is."""
        return cls(**revived_settings(config, custom_objects))


forward(TfKerasWrapper, FORWARDED)


def _require_optimizer(opt: Any, wrapper: str) -> None:
    if isinstance(opt, TfKerasHost):
        return
    if isinstance(opt, tf_keras.mixed_precision.LossScaleOptimizer):
        raise scales_already(opt, wrapper)
    if not isinstance(opt, tf_keras.optimizers.Optimizer | tf_keras.optimizers.legacy.Optimizer):
        raise wrong_optimizer(opt, TF_KERAS, "tf_keras.optimizers.Adam(1e-3)")
    if not was_claimed(opt) and getattr(opt, "_is_wrapped_by_loss_scale_optimizer", False):
        raise TypeError(
            f"This {type(opt).__name__} already belongs to another wrapper; two would share its "
            "slots. Make a new inner optimizer for each wrapper."
        )
    if aggregates_by_itself(opt):
        raise ValueError(
            f"{wrapper} sums the gradients over replicas before it decides about an overflow, so "
            "that a `gradient_aggregator` of the optimizer inside has no effect. Received: "
            f"opt.gradient_aggregator={opt.gradient_aggregator!r}. Leave it out."
        )
