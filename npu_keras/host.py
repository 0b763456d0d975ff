# SPDX-License-Identifier: Apache-2.0
"""The Keras 3 host: where a step of `npu_keras` meets a Keras 3 optimizer."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.optimizers import LossScaleOptimizer

from npu_keras.loss_scale import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_keras.mixins import StepMixin
from npu_keras.overflow import INF_NAN, Gradient
from npu_keras.state import VariableSpec

PACKAGE = "npu_keras"

for _manager in (FixedLossScaleManager, ExponentialUpdateLossScaleManager):
    keras.saving.register_keras_serializable(PACKAGE)(_manager)


class KerasHost(StepMixin, LossScaleOptimizer):
    """A Keras 3 optimizer whose `apply` is a loss-scaled step.

    It is a real subclass of `keras.optimizers.LossScaleOptimizer`, because `compile` wraps anything
    else under a `mixed_float16` policy, and the wrapper would divide by a scale nobody multiplied
    with. Of that class it keeps the interface and none of the arithmetic.

    `_target` is what does the updating: the inner optimizer of a wrapper, or the next class of a
    mixin.
    """

    @property
    def _target(self) -> Any:
        return super(LossScaleOptimizer, self)

    def build(self, variables: Sequence[Any]) -> None:
        """Creates all variables of the optimizer.

        Args:
            variables: the variables to be trained.
        """
        if self.built:
            return
        variables = list(variables)
        self._build_step(len(variables))
        self._build_target(variables)
        self._load_pending()

    def _build_target(self, variables: list[Any]) -> None:
        self._target.build(variables)

    def apply(self, grads: Sequence[Gradient | None], trainable_variables: Any = None) -> None:
        """Takes one step: decides, then updates everything or nothing, then moves the scale.

        Args:
            grads: gradients of the scaled loss, one per variable; tensors, IndexedSlices or None.
            trainable_variables: the variables; by default those the optimizer was built with.

        Raises:
            ValueError: if there is no gradient at all.
        """
        grads, variables = list(grads), self._matching_variables(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                "Expected one gradient per variable. "
                f"Received: {len(grads)} gradients for {len(variables)} variables."
            )
        self._take_step(grads, variables)

    def _matching_variables(self, trainable_variables: Any) -> list[Any]:
        if trainable_variables is not None:
            variables = list(trainable_variables)
            if not self.built:
                with keras.name_scope(self.name, caller=self):
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
        pairs = list(grads_and_vars)
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
        return self._target.variables

    @property
    def iterations(self) -> Any:
        """Applied steps; a skipped step does not advance it."""
        return self._target.iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the update."""
        return self._target.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        keras.optimizers.Optimizer.learning_rate.fset(self, learning_rate)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets final values, such as moving averages, at the end of training."""
        self._target.finalize_variable_values(var_list)

    # The names Keras' own class has for the same things.

    @property
    def dynamic_scale(self) -> Any:
        """Keras' name for `loss_scale`."""
        return self.loss_scale

    @property
    def step_counter(self) -> Any:
        """Keras' name for `good_steps`."""
        return self.good_steps

    @property
    def initial_scale(self) -> float:
        """The loss scale of the first step."""
        return float(np.float32(self._initial_scale))

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Finite steps in a row until the scale grows; None when it never does."""
        return getattr(self._loss_scale_manager, "incr_every_n_steps", None)

    @property
    def loss_scale_factor(self) -> None:
        """None: the loss scale is the manager's. Keras' wrapper writes it, which is refused."""
        return None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        if getattr(self, "_constructed", False):
            raise TypeError(
                f"{type(self).__name__} scales the loss by itself and cannot be wrapped in another "
                "loss scaler. Pass it to `model.compile` as it is."
            )
        if value is not None:
            raise ValueError(
                "A loss-scaled optimizer takes its loss scale from the manager. Received: "
                f"loss_scale_factor={value}. Use `FixedLossScaleManager({value})` instead."
            )

    # Saving.

    def load_own_variables(self, store: Any) -> None:
        """Loads variables by position, at once or, before `build`, when it is built.

        Args:
            store: mapping of position to value.
        """
        if self.built:
            super(LossScaleOptimizer, self).load_own_variables(store)
        else:
            self._pending_store = {key: np.array(store[key]) for key in store.keys()}

    def _load_pending(self) -> None:
        pending, self._pending_store = self._pending_store, None
        if pending:
            self.load_own_variables(pending)

    # Hooks of StepMixin.

    def _init_host(self, manager: Any, overflow_mode: str) -> None:
        self._pending_store: dict[str, np.ndarray] | None = None
        self._init_step(manager, overflow_mode)
        self._initial_scale = float(manager.initial_state().loss_scale)
        self._constructed = True

    def _create_state_variable(self, spec: VariableSpec) -> Any:
        variable = self.add_variable(
            shape=spec.shape,
            dtype=spec.dtype,
            initializer=keras.initializers.Constant(spec.initial_value),
            aggregation="only_first_replica",
            name=spec.name,
        )
        setattr(self, f"_state_{spec.name}", variable)  # for `tf.train.Checkpoint`
        return variable

    def _update(self, gradients: Sequence[Gradient | None], variables: Sequence[Any]) -> None:
        if self.gradient_accumulation_steps:
            # Keras 3.15.1 adds them to accumulators of the variables' dtypes without a cast.
            pairs = zip(gradients, variables, strict=True)
            gradients = [g if g is None else tf.cast(g, v.dtype) for g, v in pairs]
        self._target.apply(gradients, trainable_variables=variables)

    def _position(self, variable: Any) -> int:
        return self._get_variable_index(variable)

    def _takes_raw(self, variable: Any) -> bool:
        return self._overwrite_variable_with_gradient(variable)

    def _variable_paths(self) -> list[str]:
        return [getattr(v, "path", v.name) for v in self._trainable_variables]

    def _compute_dtype(self) -> str:
        return keras.config.dtype_policy().compute_dtype


class LossScaleMixin(KerasHost):
    """Adds loss scaling to a Keras 3 optimizer class.

    Args:
        *args: arguments of the optimizer class.
        loss_scale_manager: how the loss scale moves.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"`.
        **kwargs: arguments of the optimizer class.

    Example:

    ```python
    class ScaledAdam(npu_keras.LossScaleMixin, keras.optimizers.Adam):
        pass

    manager = npu_keras.ExponentialUpdateLossScaleManager(2**15, 2000)
    model.compile(ScaledAdam(1e-3, loss_scale_manager=manager), loss="mse")
    ```

    Raises:
        TypeError: if the mixin stands after the optimizer class, or there is no manager.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _require_mixin_first(cls)

    def __init__(
        self, *args: Any, loss_scale_manager: Any, overflow_mode: str = INF_NAN, **kwargs: Any
    ) -> None:
        super(LossScaleOptimizer, self).__init__(*args, **kwargs)
        self._init_host(loss_scale_manager, overflow_mode)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the optimizer class and of the mixin, JSON-safe."""
        config = dict(super(LossScaleOptimizer, self).get_config())
        config.pop("loss_scale_factor", None)
        serialize = keras.saving.serialize_keras_object
        config["loss_scale_manager"] = serialize(self._loss_scale_manager)
        config["overflow_mode"] = self._overflow_mode
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from `get_config`'s result, which is left as it is."""
        config = dict(config)
        config["loss_scale_manager"] = revive(config["loss_scale_manager"], custom_objects)
        return super(LossScaleOptimizer, cls).from_config(config, custom_objects=custom_objects)


def revive(value: Any, custom_objects: Any = None) -> Any:
    """Deserializes a Keras object unless it is one already."""
    if not isinstance(value, dict):
        return value
    return keras.saving.deserialize_keras_object(value, custom_objects=custom_objects)


def _require_mixin_first(cls: type) -> None:
    for base in inspect.getmro(cls):
        if base is KerasHost:
            return
        if not issubclass(base, KerasHost) and issubclass(base, keras.optimizers.Optimizer):
            raise TypeError(
                f"In class {cls.__name__} the mixin must stand before the optimizer class: "
                f"`class {cls.__name__}(LossScaleMixin, {base.__name__})`."
            )
