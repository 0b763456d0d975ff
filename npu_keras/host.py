# SPDX-License-Identifier: Apache-2.0
"""The Keras 3 host: where a step of `npu_keras` meets a Keras 3 optimizer."""

import contextlib
import copy
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import LossScaleOptimizer

from npu_keras._upstream import updates_all_at_once, updates_by_rule
from npu_keras.aggregation import GradientAggregation
from npu_keras.composites import all_of, is_composite, leave_aggregation, with_all_variables
from npu_keras.engines.strategy import replicas_in_sync, warn_where_fit_fails
from npu_keras.inputs import gradient_list, gradients_of, pair_list, variable_list
from npu_keras.inputs import learning_rate as checked_rate
from npu_keras.keras_state import KerasNames, StateVariable
from npu_keras.keras_window import KerasWindow
from npu_keras.loss_scale import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_keras.mixins import StepMixin
from npu_keras.saved_state import SavedByPosition
from npu_keras.scaling import UNSCALED, LossScaling
from npu_keras.sparse import Gradient
from npu_keras.state import VariableSpec

PACKAGE = "npu_keras"

for _cls in (FixedLossScaleManager, ExponentialUpdateLossScaleManager, GradientAggregation):
    keras.saving.register_keras_serializable(PACKAGE)(_cls)


class KerasHost(StepMixin, KerasNames, SavedByPosition, LossScaleOptimizer):
    """A Keras 3 optimizer whose `apply` is a loss-scaled step.

    It is a real subclass of `keras.optimizers.LossScaleOptimizer`, because `compile` wraps anything
    else under a `mixed_float16` policy, and the wrapper would divide by a scale nobody multiplied
    with. Of that class it keeps the interface and none of the arithmetic.

    `_target()` is what does the updating: the inner optimizer of a wrapper, or the next class of a
    mixin.
    """

    # A method, because Keras saves whatever optimizer it finds behind a property.
    def _target(self) -> Any:
        return super(LossScaleOptimizer, self)

    def build(self, variables: Sequence[Any]) -> None:
        """Creates all variables of the optimizer.

        Args:
            variables: the variables to be trained.
        """
        if self.built:
            return
        variables = variable_list("`variables`", variables)
        self._warn_if_unguarded()
        if self._owns_scaling:
            self._scaling.build(self, len(variables))
        self._build_target(variables)
        leave_aggregation(self._updating_optimizer())  # to the optimizers chosen just now, too
        self._load_pending()

    def _warn_if_unguarded(self) -> None:
        if self._updating_optimizer().loss_scale_factor is None:
            super()._warn_if_unguarded()

    def _build_target(self, variables: list[Any]) -> None:
        self._target().build(variables)

    # AutoGraph would take seconds to convert every function of a step, and has nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Gradient | None], trainable_variables: Any = None) -> None:
        """Takes one step: decides, then updates everything or nothing, then moves the scale.

        Args:
            grads: gradients of the scaled loss, one per variable; tensors, IndexedSlices or None.
            trainable_variables: the variables; by default those the optimizer was built with.

        Raises:
            ValueError: if there is no gradient at all, or one of another shape than its variable's.
            TypeError: for what is no gradient or no variable.
        """
        grads = gradient_list("`grads`", grads)
        variables = self._matching_variables(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                "Expected one gradient per variable. "
                f"Received: {len(grads)} gradients for {len(variables)} variables."
            )
        self._take_step(gradients_of(grads, variables), variables)

    def _matching_variables(self, trainable_variables: Any) -> list[Any]:
        if trainable_variables is not None:
            variables = variable_list("`trainable_variables`", trainable_variables)
            if not self.built:
                with _eagerly(), keras.name_scope(self.name, caller=self):
                    self.build(variables)
            self._check_variables_are_known(variables)
            return variables
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} does not know its variables yet. Pass "
                "`trainable_variables` to `apply`, or call `build(trainable_variables)` first."
            )
        return list(self._trainable_variables)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Takes one step; see `apply`.

        Args:
            grads_and_vars: pairs of gradient and variable.

        Returns:
            `iterations`, which a skipped step does not advance.
        """
        pairs = pair_list(grads_and_vars)
        self.apply([g for g, _ in pairs], [v for _, v in pairs])
        return self.iterations

    def stateless_apply(self, *args: Any, **kwargs: Any) -> Any:
        """Not available: the TensorFlow backend of Keras has no stateless optimizers."""
        raise ValueError(
            f"{type(self).__name__} needs the TensorFlow backend, which has no `stateless_apply`. "
            "Use `apply` or `apply_gradients`."
        )

    @property
    def variables(self) -> list[Any]:
        """All variables, in the order in which they are saved."""
        return self._target().variables

    @property
    def iterations(self) -> Any:
        """Applied steps; a skipped step does not advance it."""
        return self._target().iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the update."""
        return self._target().learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        keras.optimizers.Optimizer.learning_rate.fset(self, checked_rate(learning_rate))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets final values, such as moving averages, at the end of training."""
        self._target().finalize_variable_values(var_list)

    # Hooks of StepMixin.

    def __init__(
        self,
        *args: Any,
        _scaling: tuple[Any, str] = UNSCALED,
        _aggregation: GradientAggregation | None = None,
        **kwargs: Any,
    ) -> None:
        super(LossScaleOptimizer, self).__init__(*args, **kwargs)
        self._aggregation = _aggregation
        self._init_host(_scaling)

    def _init_host(self, scaling: tuple[Any, str]) -> None:
        self._pending_store = None
        if self._owns_scaling:
            create, paths = self._create_state_variable, self._variable_paths
            self._scaling = LossScaling(*scaling, create, paths)
        leave_aggregation(self._updating_optimizer())
        warn_where_fit_fails()
        self._first_compute_dtype = keras.config.dtype_policy().compute_dtype
        self._constructed = True

    def _updating_optimizer(self) -> Any:
        """The Keras optimizer that holds the slots."""
        return self

    def _create_state_variable(self, spec: VariableSpec) -> Any:
        with keras.name_scope(self.name, caller=self):
            variable = StateVariable(
                lambda shape, dtype: tf.cast(tf.fill(shape, spec.initial_value), dtype),
                shape=spec.shape,
                dtype=spec.dtype,
                trainable=False,
                aggregation="only_first_replica",
                name=spec.name,
            )
        self._track_variable(variable)
        setattr(self, f"_state_{spec.name}", variable)  # for `tf.train.Checkpoint`
        return variable

    def _update(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], *, last: bool = True
    ) -> None:
        if any(each.gradient_accumulation_steps for each in all_of(self._updating_optimizer())):
            # Keras 3.15.1 adds them to accumulators of the variables' dtypes without a cast.
            pairs = zip(gradients, variables, strict=True)
            gradients = [tf.cast(g, v.dtype) for g, v in pairs]
        self._apply_target(gradients, variables)
        if not last:
            # The step goes on: each of its parts has to see the same number of iterations.
            self._updating_optimizer()._iterations.assign_sub(1)

    def _apply_target(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> None:
        optimizer, every = self._updating_optimizer(), self._trainable_variables
        gradients, variables = with_all_variables(optimizer, gradients, variables, every)
        self._target().apply(gradients, trainable_variables=variables)

    def _window(self, positions: Sequence[int]) -> KerasWindow | None:
        optimizer = self._updating_optimizer()
        steps = optimizer.gradient_accumulation_steps
        return KerasWindow(optimizer, positions) if steps else None

    def _after_step(self) -> None:
        """Does what every step ends with, skipped or not."""

    def _tail_obstacle(self) -> str | None:
        optimizer = self._updating_optimizer()
        if optimizer.global_clipnorm is not None:
            return "global_clipnorm needs every gradient"
        if optimizer.use_ema:
            return "the moving average covers all variables at once"
        if optimizer.gradient_accumulation_steps:
            return "accumulated gradients are applied at once"
        if is_composite(optimizer):
            return f"{type(optimizer).__name__} divides the variables among others itself"
        if updates_all_at_once(optimizer):
            return f"{type(optimizer).__name__} updates all variables at once"
        return None

    def _compilation_obstacle(self) -> str | None:
        for optimizer in all_of(self._updating_optimizer()):
            if optimizer.gradient_accumulation_steps:
                return "gradients are accumulated, and updates made now and then"
            if optimizer.use_ema and optimizer.ema_overwrite_frequency:
                return "weights are overwritten with their averages now and then"
        return None

    def _writes_by_methods(self) -> bool:
        return updates_by_rule(self._target())

    def _trained_variables(self) -> list[Any]:
        return list(self._trainable_variables)

    def _own_variables(self) -> list[Any]:
        return list(self.variables)

    def _position(self, variable: Any) -> int:
        return self._get_variable_index(variable)

    def _takes_raw(self, position: int) -> bool:
        variable = self._trainable_variables[position]
        return not self._scaling.active or self._overwrite_variable_with_gradient(variable)

    def _variable_paths(self) -> list[str]:
        return [getattr(v, "path", v.name) for v in self._trainable_variables]

    def _compute_dtype(self) -> str:
        # Keras 3.15.1 has a policy for each thread, and each replica a thread of its own.
        if tf.distribute.has_strategy():
            return self._first_compute_dtype
        return keras.config.dtype_policy().compute_dtype


def _eagerly() -> contextlib.AbstractContextManager[None]:
    """Lifts the making of variables out of a graph that is being traced.

    A variable made while tracing has no value until the trace has ended, too late for ranks that
    have to agree on it before. Replicas make theirs together, which cannot be lifted.
    """
    return tf.init_scope() if replicas_in_sync() == 1 else contextlib.nullcontext()


def revive(value: Any, custom_objects: Any = None) -> Any:
    """Deserializes a Keras object unless it is one already."""
    if not isinstance(value, dict):
        return value
    # A copy, because Keras 3.15.1 revives a learning rate schedule in the config it is given.
    return keras.saving.deserialize_keras_object(
        copy.deepcopy(value), custom_objects=custom_objects
    )
