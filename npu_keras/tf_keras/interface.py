# SPDX-License-Identifier: Apache-2.0
"""The interface of tf_keras' loss-scale optimizers, on top of a step of `npu_keras`."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras._upstream_tf_keras import is_legacy
from npu_keras.inputs import (
    gradient_list,
    gradients_of,
    pair_list,
    present_tensors,
    tf_variable_list,
)
from npu_keras.mixins import StepMixin
from npu_keras.nesting import TF_KERAS
from npu_keras.sparse import Gradient
from npu_keras.unscaling import unscale

Pairs = list[tuple[Gradient | None, Any]]


class LossScaleInterface(StepMixin):
    """Scaling, unscaling and applying, as scripts for tf_keras call them."""

    _how_to_scale = (
        "In a tape loop write `loss = optimizer.get_scaled_loss(loss)` inside the tape and "
        "`gradients = optimizer.get_unscaled_gradients(gradients)` after it, or call `minimize`."
    )
    iterations: Any
    _unscaled_some = True
    _told_unscaled = False

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
        grads = present_tensors(gradient_list("`grads`", grads))
        scaling = self._scaling
        if not scaling.active:
            return grads
        present = [gradient for gradient in grads if gradient is not None]
        if present and scaling.manager.enable_overflow_check:
            scaling.note_finding(self._check().inspect(present))
        scale = tf.convert_to_tensor(scaling.state.loss_scale)
        divided = iter(unscale(present, scale))
        return [None if gradient is None else next(divided) for gradient in grads]

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
        if not callable(var_list):
            var_list = tf_variable_list("`var_list`", tf.nest.flatten(var_list), TF_KERAS)
        if callable(loss):
            with tape:
                if not callable(var_list):
                    tape.watch(var_list)
                loss = loss()
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        variables = tf_variable_list("`var_list`", variables, TF_KERAS)
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
        variables = tf_variable_list("`trainable_variables`", trainable_variables, TF_KERAS)
        self._apply(gradient_list("`grads`", grads), variables, unscaled=False)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, Any]],
        name: str | None = None,
        *,
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
        pairs = pair_list(grads_and_vars)
        if not (self._unscaled_some or self._told_unscaled) and self._scaling.active:
            self._warn_never_unscaled()
        aggregated = skip_gradients_aggregation or not experimental_aggregate_gradients
        gradients = [gradient for gradient, _ in pairs]
        variables = tf_variable_list("`grads_and_vars`", [v for _, v in pairs], TF_KERAS)
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
        self._take_step(gradients_of(gradients, variables), variables, **kwargs)

    def _warn_never_unscaled(self) -> None:
        self._told_unscaled = True
        warnings.warn(
            f"The loss went through `get_scaled_loss` of {type(self).__name__}, but its gradients "
            "did not go through `get_unscaled_gradients` before `apply_gradients`, so updates come "
            f"out too large by the loss scale. {self._how_to_scale}",
            stacklevel=3,
        )

    # Hooks of the host.

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates all variables of the optimizer."""
        raise NotImplementedError

    def _target(self) -> Any:
        raise NotImplementedError

    def _updating_optimizer(self) -> Any:
        raise NotImplementedError
