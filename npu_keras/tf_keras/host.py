# SPDX-License-Identifier: Apache-2.0
"""The tf_keras host: where a step of `npu_keras` meets a tf_keras optimizer, new or legacy."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from npu_keras._upstream_tf_keras import (
    apply_unaggregated,
    is_legacy,
    updates_all_at_once,
    updates_by_rule,
    variable_key,
)
from npu_keras.aggregation import GradientAggregation
from npu_keras.inputs import tf_variable_list
from npu_keras.loss_scale import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_keras.nesting import TF_KERAS
from npu_keras.saved_state import SavedByPosition
from npu_keras.scaling import UNSCALED, LossScaling
from npu_keras.sparse import Gradient, map_values
from npu_keras.state import VariableSpec
from npu_keras.tf_keras.interface import LossScaleInterface, Pairs

PACKAGE = "npu_keras.tf_keras"

for _cls in (FixedLossScaleManager, ExponentialUpdateLossScaleManager, GradientAggregation):
    tf_keras.saving.register_keras_serializable("npu_keras")(_cls)

_LossScaleOptimizer: Any = tf_keras.mixed_precision.LossScaleOptimizer


class _Constructed(type(_LossScaleOptimizer)):  # type: ignore[misc]
    """Calls constructors as they are written; that of tf_keras wants `inner_optimizer` first."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type.__call__(cls, *args, **kwargs)

    @property
    def __signature__(cls) -> inspect.Signature:
        # What `help` and notebooks show; without it that of `__call__`.
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class TfKerasHost(SavedByPosition, LossScaleInterface, _LossScaleOptimizer, metaclass=_Constructed):
    """A tf_keras optimizer whose `minimize` and `apply_gradients` are loss-scaled steps.

    It is a `tf_keras.mixed_precision.LossScaleOptimizer` by `isinstance`, because `compile` wraps
    anything else under a `mixed_float16` policy. Of that class it has the interface, less one
    thing: a skipped step does not advance `iterations`, as with the other flavours of this package
    (tf_keras 2.21.0 does advance it).

    `_target()` is what does the updating: the inner optimizer of a wrapper, or the next class of a
    mixin.
    """

    _built_with: Sequence[Any] | None = None

    @property
    def _is_wrapped_by_loss_scale_optimizer(self) -> bool:
        # Asked for by the constructors of tf_keras' own loss scalers alone (tf_keras 2.21.0).
        raise TypeError(
            f"{type(self).__name__} cannot be wrapped in the loss scaler of tf_keras, which would "
            "scale the loss a second time. If it scales the loss already, pass it to "
            "`model.compile` as it is; if not, put it into `NPULossScaleOptimizer`."
        )

    def _init_host(
        self, scaling: tuple[Any, str] = UNSCALED, aggregation: GradientAggregation | None = None
    ) -> None:
        self._aggregation = aggregation or self._aggregation
        if self._owns_scaling:
            create, paths = self._create_state_variable, self._variable_paths
            # Past `__setattr__`, whose tracking is for the variables alone.
            self.__dict__["_scaling"] = LossScaling(*scaling, create, paths)

    def _target(self) -> Any:
        return super(_LossScaleOptimizer, self)

    def _updating_optimizer(self) -> Any:
        """The tf_keras optimizer that holds the slots."""
        return self

    @property
    def built(self) -> bool:
        """Whether the optimizer has all of its variables."""
        return self._built_with is not None

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates all variables of the optimizer.

        Args:
            var_list: the variables to be trained.
        """
        if self.built:
            return
        variables = tf_variable_list("`var_list`", var_list, TF_KERAS)
        self._warn_if_unguarded()
        positions = {variable_key(v): i for i, v in enumerate(variables)}
        self.__dict__.update(_built_with=variables, _positions=positions)
        if self._owns_scaling:
            self._scaling.build(self, len(variables))
        self._build_target(variables)
        self._load_pending()

    def _build_target(self, variables: list[Any]) -> None:
        if is_legacy(self._updating_optimizer()):
            self._target()._create_all_weights(variables)
        else:
            self._target().build(variables)

    # Hooks of StepMixin.

    def _create_state_variable(self, spec: VariableSpec) -> tf.Variable:
        with tf.init_scope():
            variable = tf.Variable(
                tf.cast(tf.fill(spec.shape, spec.initial_value), spec.dtype),
                trainable=False,
                name=f"{self._scope_name()}/{spec.name}",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self._keep_state_variable(f"_state_{spec.name}", variable)
        return variable

    def _scope_name(self) -> str:
        # An .h5 file wants different names for the variables of two optimizers in one another.
        return str(vars(self).get("_name") or self.name)

    def _keep_state_variable(self, name: str, variable: tf.Variable) -> None:
        """Makes a variable one that is saved."""
        raise NotImplementedError

    def _update(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], *, last: bool = True
    ) -> None:
        pairs = [
            (map_values(_caster(variable.dtype), gradient), variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        self._apply_target(pairs)
        if not last:
            # The step goes on: each of its parts has to see the same number of iterations.
            self._updating_optimizer().iterations.assign_sub(1)

    def _apply_target(self, pairs: Pairs) -> None:
        apply_unaggregated(self._updating_optimizer(), self._target().apply_gradients, pairs)

    def _window(self, positions: Sequence[int]) -> None:
        return None  # tf_keras 2.21.0 does not accumulate gradients

    def _after_step(self) -> None:
        """Does what every step ends with, skipped or not."""

    def _tail_obstacle(self) -> str | None:
        return tail_obstacle(self._updating_optimizer())

    def _compilation_obstacle(self) -> str | None:
        optimizer = self._updating_optimizer()
        if is_legacy(optimizer):
            return "legacy optimizers have kernels of their own"
        if optimizer.use_ema and optimizer.ema_overwrite_frequency:
            return "weights are overwritten with their averages now and then"
        return None

    def _writes_by_methods(self) -> bool:
        return not is_legacy(self._updating_optimizer()) and updates_by_rule(self._target())

    def _trained_variables(self) -> list[Any]:
        return list(self._built_with or ())

    def _stored_variables(self) -> list[Any]:
        return self._own_variables()

    def _own_variables(self) -> list[Any]:
        variables = self.variables
        return list(variables() if callable(variables) else variables)

    def _position(self, variable: Any) -> int:
        position = self._positions.get(variable_key(variable))
        if position is None:
            raise ValueError(
                f"{type(self).__name__} does not know the variable {variable.name!r}. Before the "
                "first step call `optimizer.build(variables)` with all variables it is ever to "
                "train; after layers were unfrozen, or for another model, make a new optimizer."
            )
        return int(position)

    def _takes_raw(self, position: int) -> bool:
        return not self._scaling.active

    def _variable_paths(self) -> list[str]:
        return [variable.name.rpartition(":")[0] for variable in self._trained_variables()]

    def _compute_dtype(self) -> str:
        return str(tf_keras.mixed_precision.global_policy().compute_dtype)


def tail_obstacle(optimizer: Any) -> str | None:
    """Returns why a tf_keras optimizer cannot update part by part, or None if it can."""
    if optimizer.global_clipnorm is not None:
        return "global_clipnorm needs every gradient"
    if getattr(optimizer, "use_ema", False):
        return "the moving average covers all variables at once"
    if getattr(optimizer, "gradient_transformers", None):
        return "gradient_transformers may need every gradient"
    if updates_all_at_once(optimizer):
        return f"{type(optimizer).__name__} updates all variables at once"
    return None


def _caster(dtype: tf.DType) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda values: tf.cast(values, dtype)
