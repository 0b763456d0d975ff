# SPDX-License-Identifier: Apache-2.0
"""The order of a training step, written once and used by every flavour.

1. `scale_loss`: the loss, in float32, times the loss scale.
2. backward, by the host.
3. aggregation of the scaled gradients over ranks or replicas.
4. one decision: did anyone overflow?
5. unscale, in float32.
6. the host's own update (clipping, weight decay, moving averages), or nothing at all.
7. the manager's transition, and a journal entry if something happened.
"""

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from npu_keras._upstream import in_xla
from npu_keras.channels import Alone, Channel, GradientList
from npu_keras.decision import Decision, decide, joined
from npu_keras.execution import BRANCHED, NOT_COMPILED, Compilation, Execution, execution_of
from npu_keras.journal import record
from npu_keras.loss_scale import LossScaleManager, ScaleState
from npu_keras.ordering import in_order
from npu_keras.overflow import CheckedBefore, OverflowCheck, no_finding
from npu_keras.protection import Protection
from npu_keras.sparse import Gradient
from npu_keras.state import StepState
from npu_keras.unscaling import unscaled

TF_NAMESPACE = SimpleNamespace(where=tf.where, minimum=tf.minimum, maximum=tf.maximum)
"""The `xp` of `LossScaleManager.next_state` for TensorFlow tensors."""


class Step(NamedTuple):
    """What the steps of one optimizer consist of.

    Attributes:
        manager: how the loss scale moves.
        check: how an overflow is recognised.
        state: the variables.
        protection: values that a skipped step puts back.
        channel: the ranks or replicas that take the step together.
        overlap_tail: whether what has arrived is applied while the rest is still travelling.
        compilation: what is known of the host's update, should it be compiled.
    """

    manager: LossScaleManager
    check: OverflowCheck | CheckedBefore
    state: StepState
    protection: Protection
    channel: Channel
    overlap_tail: bool
    compilation: Compilation = NOT_COMPILED


class Update(Protocol):
    """The host's own update of some of the variables."""

    def __call__(self, gradients: GradientList, *, last: bool) -> None:
        """Updates variables.

        Args:
            gradients: unscaled gradients, with the positions of their variables.
            last: False when more variables of the same step follow.
        """


def take_step(
    step: Step,
    own: GradientList,
    update: Update,
    *,
    takes_raw: Callable[[int], bool],
    forward_finite: tf.Tensor,
) -> None:
    """Aggregates, decides, updates everything or nothing, then moves the scale.

    Args:
        step: the optimizer's configuration and variables.
        own: this rank's gradients of the scaled loss.
        update: the host's own update.
        takes_raw: whether the variable at a position is left out of unscaling.
        forward_finite: bool scalar, whether the loss itself was finite.
    """
    channel, before = step.channel, step.state.scale_state()
    sent = channel.outgoing(own)
    arrived = channel.reduce(sent)
    decision = _decide(step, sent, arrived, forward_finite)
    execution = execution_of(step.compilation, sent.gradients)
    parts = (channel if step.overlap_tail else execution).parts(sent)

    def write(scalars: tuple[ScaleState, Decision], gradients: list[Gradient]) -> None:
        before, decision = scalars

        def apply(part: Sequence[int], gradients: list[Gradient]) -> None:
            def update_part(gradients: list[Gradient], scale: tf.Tensor) -> None:
                scaled = GradientList(gradients, [sent.positions[i] for i in part])
                update(unscaled(scaled, scale, takes_raw), last=part is parts[-1])

            execution.update(update_part, [gradients[i] for i in part], before.loss_scale)

        updates = [
            functools.partial(channel.update, functools.partial(apply, part), gradients)
            for part in parts
        ]
        settle(step, before, decision, updates, execution)

    channel.commit(write, (before, decision), arrived.gradients)


def settle(
    step: Step,
    before: ScaleState,
    decision: Decision,
    updates: Sequence[Callable[[], Any]],
    execution: Execution = BRANCHED,
) -> list[Any]:
    """Updates everything or nothing, then moves the scale and records the step.

    Args:
        step: the optimizer's configuration and variables.
        before: the state the step was taken with.
        decision: the common decision.
        updates: each updates a part of the variables.
        execution: how they are run.

    Returns:
        What all effects are reached by in a graph of `tf.compat.v1`; nothing elsewhere.
    """
    writes = [
        functools.partial(write_part, step, decision, update, execution, last=update is updates[-1])
        for update in updates
    ]
    return in_order(*writes, functools.partial(finish, step, before, decision))


def write_part(
    step: Step,
    decision: Decision,
    update: Callable[[], Any],
    execution: Execution = BRANCHED,
    *,
    last: bool,
) -> Any:
    """Updates a part of the variables, or nothing; the last part settles what is protected.

    Args:
        step: the optimizer's configuration and variables.
        decision: the common decision.
        update: updates the part.
        execution: how it is run.
        last: False when more parts of the same step follow.

    Returns:
        Where it matters, the operation that all effects are reached by.
    """

    def apply() -> list[Any]:
        return in_order(update, *([step.protection.remember] if last else []))

    def skip() -> None:
        if last:
            step.protection.restore()
            step.state.overflows_by_variable.assign_add(decision.bad_variables)

    # Not by all ops made: an update may make slots, whose initializers are no part of the step.
    if step.manager.enable_overflow_check:
        return execution.either(decision.finite, apply, skip)
    effects = apply()
    return tf.group(effects) if effects else None


def _decide(
    step: Step, sent: GradientList, arrived: GradientList, forward_finite: tf.Tensor
) -> Decision:
    decision = decide_on_own(step, sent, forward_finite, divisor=step.channel.divisor)
    if not (step.channel.may_overflow and step.manager.enable_overflow_check):
        return decision
    # The aggregate is the same for all, so that what is found in it needs no second agreement.
    return joined(decision, step.check.inspect_aggregate(arrived.gradients), arrived.positions)


def decide_on_own(
    step: Step, own: GradientList, forward_finite: tf.Tensor, *, divisor: int = 1
) -> Decision:
    """Decides together on what each has in its own gradients.

    Args:
        step: the optimizer's configuration and variables.
        own: gradients of the scaled loss.
        forward_finite: bool scalar, whether the loss itself was finite.
        divisor: what the gradients have been divided by.
    """
    count = step.state.overflows_by_variable.shape[0]
    if not step.manager.enable_overflow_check:
        nothing = no_finding(len(own.gradients))
        return decide(nothing, own.positions, count, forward_finite, Alone())
    finding = step.check.inspect(own.gradients, divisor)
    return decide(finding, own.positions, count, forward_finite, step.channel)


def finish(step: Step, before: ScaleState, decision: Decision) -> None:
    """Moves the scale and records the step.

    Args:
        step: the optimizer's configuration and variables.
        before: the state the step was taken with.
        decision: the common decision.
    """
    finite = decision.finite
    after = _transition(step.manager, before, finite)
    bad_steps = before.bad_steps + tf.cast(tf.logical_not(finite), before.bad_steps.dtype)
    step.state.assign_scale_state(after)
    record(step.state, finite, before.loss_scale, after.loss_scale, bad_steps, decision.blame)


def _transition(manager: LossScaleManager, before: ScaleState, finite: tf.Tensor) -> ScaleState:
    pure = type(manager).next_state is not LossScaleManager.next_state
    if pure or tf.executing_eagerly():
        return manager.next_state(before, finite, TF_NAMESPACE)
    if in_xla():
        return _compiled_transition(manager, before, finite)
    # A manager that keeps its own state may keep it in Python: run it once per step, not per trace.
    dtypes = [value.dtype for value in before]

    def call(finite: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        after = manager.next_state(ScaleState(*values), finite, TF_NAMESPACE)
        # `identity`, because a variable may not leave a `py_function`.
        pairs = zip(after, dtypes, strict=True)
        return [tf.identity(tf.cast(value, dtype)) for value, dtype in pairs]

    after = tf.py_function(call, [finite, *before], dtypes)
    return ScaleState(*(tf.ensure_shape(value, ()) for value in after))


def _compiled_transition(
    manager: LossScaleManager, before: ScaleState, finite: tf.Tensor
) -> ScaleState:
    """The transition of a manager with a state of its own under XLA, which cannot call Python."""
    try:
        after = manager.next_state(before, finite, TF_NAMESPACE)
    except tf.errors.OperatorNotAllowedInGraphError as error:
        raise _state_in_python(manager) from error
    if not tf.is_tensor(after.loss_scale):
        raise _state_in_python(manager)
    return after


def _state_in_python(manager: LossScaleManager) -> RuntimeError:
    return RuntimeError(
        f"{type(manager).__name__} keeps its loss scale in Python, where XLA cannot move it. Keep "
        "it in a `tf.Variable` and move it without `if`, or override `next_state`, or train with "
        "`jit_compile=False`."
    )


def move_scale(manager: LossScaleManager, state: StepState, finite: Any) -> tf.Tensor:
    """Makes one transition by hand, as `update_loss_scale` of the managers' interface does.

    Args:
        manager: how the loss scale moves.
        state: the optimizer's variables.
        finite: bool scalar.

    Returns:
        The new loss scale, float32 scalar.
    """
    after = _transition(manager, state.scale_state(), tf.cast(finite, tf.bool))
    with tf.control_dependencies(in_order(lambda: state.assign_scale_state(after))):
        return tf.convert_to_tensor(state.loss_scale)
