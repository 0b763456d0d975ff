# SPDX-License-Identifier: Apache-2.0
"""The `tf.compat.v1.train` host: where a step of `npu_keras` meets an optimizer of TensorFlow 1.

Its two halves are apart: `compute_gradients` scales, aggregates and unscales, `apply_gradients`
decides and updates, and in between the script does what it likes.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras import step as order
from npu_keras._upstream import keeps_order
from npu_keras.aggregation import GradientAggregation
from npu_keras.channels import Channel, GradientList
from npu_keras.constructors import Constructed
from npu_keras.decision import Decision, decide, joined
from npu_keras.engines.lane_order import separate
from npu_keras.inputs import gradients_of, pair_list, tf_variable_list
from npu_keras.nesting import V1, adopt, claim
from npu_keras.overflow import INF_NAN, SATURATION, Finding, OverflowCheck, no_finding
from npu_keras.scaling import UNSCALED, LossScaling
from npu_keras.sparse import Gradient, map_values
from npu_keras.unscaling import present_gradients, unscaled
from npu_keras.v1.findings import Computed, Findings, first_of, spread
from npu_keras.v1.graph_managers import InGraph, adapted, state_for
from npu_keras.v1.inner import (
    as_train_op,
    in_present_scope,
    require_optimizer,
    require_step_counter,
)
from npu_keras.v1.loss_check import LossCheck, warn_of_constant_scale
from npu_keras.v1.names import V1Names
from npu_keras.v1.ranks import V1Ranks

_numbers = itertools.count()


class V1Host(V1Names, V1Ranks, Constructed, tf.compat.v1.train.Optimizer):
    """A `tf.compat.v1.train.Optimizer` that takes loss-scaled steps around another one."""

    def _init_wrapper(
        self,
        opt: Any,
        name: str,
        scaling: tuple[Any, str] = UNSCALED,
        aggregation: GradientAggregation | None = None,
    ) -> None:
        require_optimizer(opt)
        tf.compat.v1.train.Optimizer.__init__(self, use_locking=False, name=name)
        self.inner_optimizer = opt
        if isinstance(opt, tf.compat.v1.train.Optimizer):
            self._track_trackable(opt, "inner_optimizer")
        adopt(self, opt, scaling, aggregation)
        self._findings = Findings()
        self._chain = f"optimizer {next(_numbers)} "
        self._trained: list[Any] = []
        self._positions: dict[Any, int] = {}
        if self._owns_scaling:
            self._make_scaling(*scaling)
        claim(opt, self)

    def _make_scaling(self, manager: Any, mode: str) -> None:
        warn_of_constant_scale(manager)
        manager = adapted(manager)
        self._plain_names = manager is not None and not isinstance(manager, InGraph)
        self._graph_state = state_for(manager)
        create, paths = self._create_state_variable, self._variable_paths
        self._scaling = LossScaling(manager, mode, create, paths)
        self._scaling.manager.bind(self)

    # AutoGraph would take seconds to convert every function of a step, and has nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def compute_gradients(
        self,
        loss: Any,
        var_list: Any = None,
        gate_gradients: int = tf.compat.v1.train.Optimizer.GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """Computes gradients of the scaled loss, aggregates them and takes the scale out again.

        Args:
            loss: tensor of any real dtype, or a function that returns it (eagerly: a function).
            var_list: the variables; by default the trainable ones of the graph.
            gate_gradients: as in `tf.compat.v1.train.Optimizer`.
            aggregation_method: as in `tf.compat.v1.train.Optimizer`.
            colocate_gradients_with_ops: as in `tf.compat.v1.train.Optimizer`.
            grad_loss: gradient for `loss`, of its shape, or None.

        Returns:
            Pairs of gradient and variable; a gradient is a tensor, IndexedSlices or None, in the
            dtype in which the inner optimizer's `compute_gradients` gives it.
        """
        if var_list is not None:
            var_list = tf_variable_list("`var_list`", tf.nest.flatten(var_list), V1)
        check = LossCheck(self._scaling)
        before = self._loss_scale()
        if self._scaling.active:
            loss, grad_loss = check.scaled(loss, grad_loss, before)
        given = {
            "gate_gradients": (gate_gradients, tf.compat.v1.train.Optimizer.GATE_OP),
            "aggregation_method": (aggregation_method, None),
            "colocate_gradients_with_ops": (colocate_gradients_with_ops, False),
            "grad_loss": (grad_loss, None),
        }
        # Only what was asked for, as a user's own class may know the first two alone.
        others = {key: value for key, (value, default) in given.items() if value is not default}
        pairs = list(self._target().compute_gradients(loss, var_list=var_list, **others))
        with separate(self._own_chain()):
            return self._finished(pairs, before, check.forward_finite())

    def _finished(
        self, pairs: list[tuple[Any, Any]], scale: tf.Tensor, forward_finite: tf.Tensor
    ) -> list[tuple[Any, Any]]:
        positions = self._known([variable for _, variable in pairs])
        if all(gradient is None for gradient, _ in pairs) and not self._has_ranks():
            return pairs
        own = present_gradients([gradient for gradient, _ in pairs], positions)
        channel = self._reducing_channel(positions)
        sent = channel.outgoing(own)
        arrived = channel.reduce(sent)
        found, aggregate = self._look(channel, sent, arrived)
        if self._check().mode == SATURATION:
            # What is saturated does not show any more once the scale is out: a NaN does, also in
            # sums of several steps.
            bad = tf.logical_or(found.overflowed, aggregate.overflowed)
            scale = tf.where(bad, tf.constant(float("nan")), scale)
        gradients = self._unscaled(arrived, scale)
        returned = tuple(gradients.values())
        self._findings.add(
            Computed(frozenset(sent.positions), found, aggregate, forward_finite, returned)
        )
        return [(gradients.get(p), v) for p, (_, v) in zip(positions, pairs, strict=True)]

    def _look(
        self, channel: Channel, sent: GradientList, arrived: GradientList
    ) -> tuple[Finding, Finding]:
        """Returns what is found in this rank's gradients, and in a sum that can overflow."""
        count = len(self._trained)
        nothing = no_finding(count)
        if not self._scaling.manager.enable_overflow_check:
            return nothing, nothing
        check = self._check()
        found = spread(check.inspect(sent.gradients, channel.divisor), sent.positions, count)
        if not channel.may_overflow:
            return found, nothing
        summed = check.inspect_aggregate(arrived.gradients)
        return found, spread(summed, arrived.positions, count)

    def _unscaled(self, arrived: GradientList, scale: tf.Tensor) -> dict[int, Gradient]:
        dtypes = [gradient.dtype for gradient in arrived.gradients]
        if self._scaling.active:
            arrived = unscaled(arrived, scale, takes_raw=lambda position: False)
        gradients = self._guarded(arrived.gradients)
        return {
            position: map_values(functools.partial(tf.cast, dtype=dtype), gradient)
            for gradient, position, dtype in zip(gradients, arrived.positions, dtypes, strict=True)
        }

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Applies gradients if the step was free of overflow everywhere, then moves the scale.

        Overflows count that `compute_gradients` found in the scaled gradients, and those that
        stand in the gradients given here.

        Args:
            grads_and_vars: pairs of unscaled gradient and variable; a gradient may be None.
            global_step: variable that an applied step increments by one; a skipped one does not.
            name: name of the returned operation.

        Returns:
            The operation that takes the step; None eagerly.

        Raises:
            ValueError: if there is no gradient at all.
        """
        pairs = pair_list(grads_and_vars)
        positions = self._known([variable for _, variable in pairs])
        require_step_counter(global_step)
        variables = [variable for _, variable in pairs]
        gradients = gradients_of([gradient for gradient, _ in pairs], variables)
        pairs = list(zip(gradients, variables, strict=True))
        own = present_gradients(gradients, positions)
        self._warn_if_never_scaled()
        with separate(self._own_chain()):
            call = self._findings.take(own.gradients, own.positions)
            step = self._step(self._deciding_channel())
            decision = self._decision(step, own, call)
            if self._scaling.active:
                flag = tf.identity(decision.finite, name="overflow_status_reduce_all")
                decision = decision._replace(finite=flag)
            before = step.state.scale_state()._replace(loss_scale=self._loss_scale())
            update = in_present_scope(self._target().apply_gradients, pairs, global_step)
            # What is read here, and what a script fetches by name, is written only now.
            with tf.control_dependencies([*before, *self._named_values()]):
                done = order.settle(step, before, decision, [update])
        if tf.executing_eagerly():
            return None
        return as_train_op(tf.group(*done, name=name or self._name))

    def _decision(self, step: order.Step, own: GradientList, call: Computed | None) -> Decision:
        if not step.manager.enable_overflow_check:
            return order.decide_on_own(step, own, tf.constant(True))
        count = len(self._trained)
        if call is None:
            found = spread(step.check.inspect(own.gradients), own.positions, count)
            return decide(found, range(count), count, tf.constant(True), step.channel)
        found = call.own
        if not (step.overlap_tail or call.is_exactly(own.gradients)):
            ieee = self._check()._replace(mode=INF_NAN)
            given = spread(ieee.inspect(own.gradients), own.positions, count)
            found = first_of(found, given)
        decision = decide(found, range(count), count, call.forward_finite, step.channel)
        return joined(decision, call.aggregate, range(count))

    def _loss_scale(self) -> tf.Tensor:
        manager = self._scaling.manager
        if isinstance(manager, InGraph):
            return manager.get_loss_scale()
        return tf.identity(self._scaling.state.loss_scale)

    def _check(self) -> OverflowCheck:
        mode = self._scaling.mode if self._scaling.manager.enable_overflow_check else INF_NAN
        return OverflowCheck(mode, self._compute_dtype())

    def _own_chain(self) -> str:
        return "" if keeps_order() else self._chain

    def _train(self, variables: list[Any]) -> None:
        self._trained = variables
        self._positions = {variable.ref(): i for i, variable in enumerate(variables)}
        if isinstance(self.inner_optimizer, V1Host):  # its journal is ours
            self.inner_optimizer._train(variables)

    def _known(self, variables: Sequence[Any]) -> list[int]:
        """Returns the positions of variables; the first call makes what depends on them."""
        variables = tf_variable_list("`grads_and_vars`", variables, V1)
        if not self._trained:
            others = [] if tf.executing_eagerly() else tf.compat.v1.trainable_variables()
            self._train(list({v.ref(): v for v in [*variables, *others]}.values()))
            self._scaling.state.build(len(self._trained))
        unknown = [v.name for v in variables if v.ref() not in self._positions]
        if unknown:
            raise ValueError(
                f"{type(self).__name__} has to know all its variables at its first call. "
                f"Received later: {unknown}. Make them before, pass all of them in the first "
                "`var_list`, or make an optimizer for them."
            )
        return [self._positions[v.ref()] for v in variables]
