# SPDX-License-Identifier: Apache-2.0
"""The tf_keras host: where a step of `npu_keras` meets a tf_keras optimizer, new or legacy."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from npu_keras._upstream_tf_keras import (
    apply_unaggregated,
    is_legacy,
    updates_all_at_once,
    variable_key,
)
from npu_keras.aggregation import GradientAggregation
from npu_keras.loss_scale import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_keras.mixins import StepMixin
from npu_keras.saved_state import SavedByPosition
from npu_keras.scaling import UNSCALED, LossScaling
from npu_keras.sparse import Gradient, map_values
from npu_keras.state import VariableSpec
from npu_keras.unscaling import unscale

PACKAGE = "npu_keras.tf_keras"

for _cls in (FixedLossScaleManager, ExponentialUpdateLossScaleManager, GradientAggregation):
    tf_keras.saving.register_keras_serializable("npu_keras")(_cls)

Pairs = list[tuple[Gradient | None, Any]]
_LossScaleOptimizer: Any = tf_keras.mixed_precision.LossScaleOptimizer


class _Constructed(type(_LossScaleOptimizer)):  # type: ignore[misc]
    """Calls constructors as they are written; that of tf_keras wants `inner_optimizer` first."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type.__call__(cls, *args, **kwargs)


class TfKerasHost(SavedByPosition, StepMixin, _LossScaleOptimizer, metaclass=_Constructed):
    """A tf_keras optimizer whose `minimize` and `apply_gradients` are loss-scaled steps.

    It is a `tf_keras.mixed_precision.LossScaleOptimizer` by `isinstance`, because `compile` wraps
    anything else under a `mixed_float16` policy. Of that class it has the interface, less one
    thing: a skipped step does not advance `iterations`, as with the other flavours of this package
    (tf_keras 2.21.0 does advance it).

    `_target()` is what does the updating: the inner optimizer of a wrapper, or the next class of a
    mixin.
    """

    _how_to_scale = (
        "In a tape loop write `loss = optimizer.get_scaled_loss(loss)` inside the tape and "
        "`gradients = optimizer.get_unscaled_gradients(gradients)` after it, or call `minimize`."
    )
    _built_with: Sequence[Any] | None = None
    _unscaled_some = True
    _told_unscaled = False

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
        self._warn_if_unguarded()
        variables = list(var_list)
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

    @property
    def dynamic(self) -> bool:
        """Whether the loss scale moves."""
        return self.dynamic_growth_steps is not None

    @property
    def dynamic_counter(self) -> Any:
        """tf_keras' name for `good_steps`; None if the loss scale never moves."""
        return self.good_steps if self.dynamic else None

    @tf.autograph.experimental.do_not_convert
    def get_scaled_loss(self, loss: Any) -> Any:
        """Multiplies the loss by the loss scale, in float32 at least.

        Args:
            loss: scalar tensor of any real dtype, or a function without arguments that returns one.

        Returns:
            float32 scalar (float64 for a float64 loss), or a function that returns it.
        """
        self._unscaled_some = False
        if callable(loss):
            return lambda: self.scale_loss(loss())
        return self.scale_loss(loss)

    @tf.autograph.experimental.do_not_convert
    def get_unscaled_gradients(self, grads: Iterable[Gradient | None]) -> list[Gradient | None]:
        """Divides gradients by the loss scale, in float32 at least.

        What overflows in them is remembered for the next `apply_gradients`, even if clipping by
        value hides it in between.

        Args:
            grads: gradients of the scaled loss; tensors, IndexedSlices or None.
        """
        self._unscaled_some = True
        grads = list(grads)
        scaling = self._scaling
        if not scaling.active:
            return grads
        present = [gradient for gradient in grads if gradient is not None]
        if present and scaling.manager.enable_overflow_check:
            scaling.note_finding(self._check().inspect(present))
        scale = tf.convert_to_tensor(scaling.state.loss_scale)
        return [None if gradient is None else unscale(gradient, scale) for gradient in grads]

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: Any = None, grad_loss: Any = None
    ) -> Pairs:
        """Computes gradients, without the loss scale, for `apply_gradients`.

        Args:
            loss: a function without arguments, or a tensor together with its `tape`.
            var_list: the variables, or a function that returns them.
            tape: the `tf.GradientTape` in which a tensor `loss` was computed.
            grad_loss: gradient of the loss itself, for legacy optimizers.
        """
        pairs = self._scaled_gradients(loss, var_list, tape, grad_loss)
        gradients = self.get_unscaled_gradients(gradient for gradient, _ in pairs)
        return [(g, v) for g, (_, v) in zip(gradients, pairs, strict=True)]

    @tf.autograph.experimental.do_not_convert
    def minimize(
        self,
        loss: Any,
        var_list: Any,
        tape: Any = None,
        *,
        grad_loss: Any = None,
        name: str | None = None,
    ) -> None:
        """Scales the loss, computes gradients and takes one step with them.

        Args:
            loss: a function without arguments, or a tensor together with its `tape`.
            var_list: the variables, or a function that returns them.
            tape: the `tf.GradientTape` in which a tensor `loss` was computed.
            grad_loss: gradient of the loss itself, for legacy optimizers.
            name: ignored; for the interface of legacy optimizers.
        """
        pairs = self._scaled_gradients(loss, var_list, tape, grad_loss)
        self.apply([g for g, _ in pairs], [v for _, v in pairs])

    def _scaled_gradients(self, loss: Any, var_list: Any, tape: Any, grad_loss: Any) -> Pairs:
        if not callable(loss) and tape is None:
            raise ValueError(
                "A loss that is a tensor needs the `tape` in which it was computed. "
                f"Received: loss={loss!r}, tape=None"
            )
        tape = tf.GradientTape() if tape is None else tape
        if callable(loss):
            with tape:
                if not callable(var_list):
                    tape.watch(var_list)
                loss = loss()
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        with tape:
            scaled = self.scale_loss(loss)
        return self._gradients_of(scaled, variables, tape, grad_loss)

    def _gradients_of(self, loss: Any, variables: list[Any], tape: Any, grad_loss: Any) -> Pairs:
        target = self._target()
        if is_legacy(self._updating_optimizer()):
            return list(target._compute_gradients(loss, variables, grad_loss, tape=tape))
        return list(target.compute_gradients(loss, variables, tape=tape))

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Gradient | None], trainable_variables: Sequence[Any]) -> None:
        """Takes one step with gradients of the scaled loss, as optimizers of Keras 3 do.

        Args:
            grads: gradients of the scaled loss, one per variable; tensors, IndexedSlices or None.
            trainable_variables: the variables.
        """
        self._apply(list(grads), list(trainable_variables), unscaled=False)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Takes one step with unscaled gradients: aggregates, decides, updates all or nothing.

        Args:
            grads_and_vars: pairs of gradient and variable, as `get_unscaled_gradients` gave them.
            name: ignored; for the interface of tf_keras.
            skip_gradients_aggregation: whether the gradients are aggregated over ranks or replicas
                already. The decision is common all the same.
            experimental_aggregate_gradients: the reverse, for the interface of legacy optimizers.

        Returns:
            `iterations`, which a skipped step does not advance.

        Raises:
            ValueError: if there is no gradient at all, or a variable is unknown.
        """
        pairs = list(grads_and_vars)
        if not (self._unscaled_some or self._told_unscaled) and self._scaling.active:
            self._warn_never_unscaled()
        aggregated = skip_gradients_aggregation or not experimental_aggregate_gradients
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        self._apply(gradients, variables, unscaled=True, aggregated=aggregated)
        return self.iterations

    def _apply(self, gradients: list[Any], variables: list[Any], **kwargs: bool) -> None:
        if len(gradients) != len(variables):
            raise ValueError(
                "Expected one gradient per variable. "
                f"Received: {len(gradients)} gradients for {len(variables)} variables."
            )
        with tf.init_scope():
            self.build(variables)
        self._take_step(gradients, variables, **kwargs)

    def _warn_never_unscaled(self) -> None:
        self._told_unscaled = True
        warnings.warn(
            f"The loss went through `get_scaled_loss` of {type(self).__name__}, but its gradients "
            "did not go through `get_unscaled_gradients` before `apply_gradients`, so updates come "
            f"out too large by the loss scale. {self._how_to_scale}",
            stacklevel=3,
        )

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
                f"{type(self).__name__} does not know the variable {variable.name!r}. Call "
                "`optimizer.build(variables)` with all variables it is to train before the first "
                "step, or make an optimizer for each part."
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
