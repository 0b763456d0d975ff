# SPDX-License-Identifier: Apache-2.0
"""A step whose gradients are added up locally and sent once in k steps.

One process on one device leaves accumulation to its Keras optimizer. With several ranks or
replicas that would send every time, and Keras' conditional cannot hold an update over replicas.
Each micro-batch is checked, by all together: one that overflowed anywhere is dropped everywhere.
"""

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from npu_keras import step as order
from npu_keras.channels import GradientList
from npu_keras.decision import Decision
from npu_keras.loss_scale import ScaleState
from npu_keras.unscaling import unscaled


class Window(Protocol):
    """The sums of a host's gradients since its last update."""

    def add(self, gradients: GradientList) -> None:
        """Adds one micro-batch's unscaled gradients (in each replica)."""

    def advance(self, finite: tf.Tensor) -> tf.Tensor:
        """Counts a finite micro-batch; returns whether the window is full (across replicas)."""

    def means(self) -> GradientList:
        """Returns the means over the micro-batches (in each replica)."""

    def flush(self, update: Callable[[], None]) -> None:
        """Calls `update` as one step of the optimizer, then empties the sums."""


def take_accumulated_step(
    step: order.Step,
    own: GradientList,
    window: Window,
    update: order.Update,
    *,
    takes_raw: Callable[[int], bool],
    forward_finite: tf.Tensor,
) -> None:
    """Decides, adds up or drops the gradients, and aggregates and updates when the window is full.

    The aggregation stands in a branch, which all ranks enter together: what decides is the common
    decision and the number of micro-batches, equal everywhere.

    Args:
        step: the optimizer's configuration and variables.
        own: this rank's gradients of the scaled loss.
        window: the host's sums.
        update: the host's own update.
        takes_raw: whether the variable at a position is left out of unscaling.
        forward_finite: bool scalar, whether the loss itself was finite.
    """
    channel, before = step.channel, step.state.scale_state()
    decision = order.decide_on_own(step, own, forward_finite)

    def send_and_update(_: Any) -> None:
        update(channel.reduce(channel.outgoing(window.means())), last=True)

    def flush() -> tf.Tensor:
        window.flush(lambda: channel.update(send_and_update, []))
        return tf.constant(True)

    def write(scalars: tuple[ScaleState, Decision], gradients: list[Any]) -> None:
        before, decision = scalars

        def add(gradients: list[Any]) -> None:
            micro_batch = GradientList(gradients, own.positions)
            window.add(unscaled(micro_batch, before.loss_scale, takes_raw))

        order.write_part(step, decision, lambda: channel.update(add, gradients), last=True)
        full = window.advance(decision.finite)
        tf.cond(tf.logical_and(decision.finite, full), flush, lambda: tf.constant(False))
        order.finish(step, before, decision)

    channel.commit(write, (before, decision), own.gradients)
