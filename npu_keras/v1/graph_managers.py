# SPDX-License-Identifier: Apache-2.0
"""Managers whose own methods make ops, as those of TensorFlow 1 do."""

from typing import Any

import tensorflow as tf

from npu_keras import _stateless_manager
from npu_keras.loss_scale import LossScaleManager, ScaleState
from npu_keras.ordering import in_order
from npu_keras.v1.graph_state import GraphState


class InGraph(LossScaleManager):
    """A manager that keeps its scale in the graph.

    Args:
        manager: its `get_loss_scale` returns a tensor or a variable of the graph, and its
            `update_loss_scale` makes the ops that move it.
    """

    def __init__(self, manager: LossScaleManager) -> None:
        self.manager = manager
        self.enable_overflow_check = bool(manager.get_enable_overflow_check())

    def get_loss_scale(self) -> tf.Tensor:
        """Returns the manager's scale, read here, as a float32 scalar."""
        # A copy, because a reference variable of TensorFlow 1 is written in place.
        scale = tf.convert_to_tensor(self.manager.get_loss_scale())
        return tf.cast(tf.raw_ops.DeepCopy(x=scale), tf.float32)

    def update_loss_scale(self, finite_grads: Any) -> Any:
        """Makes the ops that move the scale."""
        return self.manager.update_loss_scale(finite_grads)

    def initial_state(self) -> ScaleState:
        """Returns a state whose scale is a stand-in: the manager's has no value yet."""
        return ScaleState(1.0, 0, 0)

    def next_state(self, state: ScaleState, finite: Any, xp: Any) -> ScaleState:
        """Moves the manager's scale, then reads it."""
        moved = in_order(lambda: self.update_loss_scale(finite))
        with tf.control_dependencies(moved):
            scale = self.get_loss_scale()
        good = xp.where(finite, state.good_steps + 1, 0)
        bad = xp.where(finite, state.bad_steps, state.bad_steps + 1)
        return ScaleState(scale, good, bad)

    def bind(self, owner: Any) -> None:
        """Ties the manager to the optimizer."""
        self.manager.bind(owner)

    def get_config(self) -> dict[str, Any]:
        """Returns the manager's constructor arguments, if it has said which."""
        return self.manager.get_config()


def adapted(manager: LossScaleManager | None) -> LossScaleManager | None:
    """Returns a manager whose state is in the graph as one that `npu_keras` can drive."""
    if manager is None or type(manager).next_state is not LossScaleManager.next_state:
        return manager
    scale = manager.get_loss_scale()
    in_graph = isinstance(scale, tf.Variable) and not tf.executing_eagerly()
    return InGraph(manager) if in_graph or tf.is_symbolic_tensor(scale) else manager


def graph_state_here(known: Any, initial: ScaleState) -> GraphState | None:
    """Returns the state of a manager in the present graph, or None where there is no graph.

    Args:
        known: its state in some graph, or None.
        initial: its first state.
    """
    with tf.init_scope():
        if tf.executing_eagerly():
            return None
        graph = tf.compat.v1.get_default_graph()
        return known if known is not None and known.graph is graph else GraphState(initial)


_stateless_manager.graph_state_here = graph_state_here


def state_for(manager: LossScaleManager | None) -> GraphState | None:
    """Returns the state in the present graph of a manager that leaves it to the optimizer.

    It may be there already, if the script has asked the manager for its scale.
    """
    if manager is None or isinstance(manager, InGraph):
        return None
    known = vars(manager).pop("graph_state", None)
    return graph_state_here(known, manager.initial_state())


def original(manager: LossScaleManager) -> LossScaleManager:
    """Returns the manager that `adapted` was given."""
    return manager.manager if isinstance(manager, InGraph) else manager
