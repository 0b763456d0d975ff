# SPDX-License-Identifier: Apache-2.0
"""Order among side effects, where TensorFlow does not keep it by itself.

Eagerly, and while a `tf.function` is traced, what is written first happens first. In a graph of
`tf.compat.v1`, run by a session, only what depends on each other has an order, and only what the
fetched tensors depend on happens at all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from npu_keras._upstream import control_flow_context, keeps_order


def in_order(*actions: Callable[[], Any]) -> list[Any]:
    """Calls actions whose side effects must come one after the other.

    Args:
        actions: functions without arguments. One that returns an operation answers for its side
            effects by it; otherwise every op it makes counts.

    Returns:
        What the last effects are reached by; nothing where TensorFlow keeps the order.
    """
    if keeps_order():
        for action in actions:
            action()
        return []
    done: list[Any] = []
    for action in actions:
        with tf.control_dependencies(done), _made() as made:
            returned = action()
        effects = [returned] if isinstance(returned, tf.Operation) else made
        done = effects or done
    return done


def branch(action: Callable[[], Any], value: bool) -> Callable[[], tf.Tensor]:
    """Makes a branch for `tf.cond` that takes effect wherever the conditional is used.

    Args:
        action: function without arguments.
        value: what the branch returns.
    """

    def taken() -> tf.Tensor:
        with tf.control_dependencies(in_order(action)):
            return tf.identity(tf.constant(value))

    return taken


@contextmanager
def _made() -> Iterator[list[Any]]:
    """Collects the ops made inside, except those lifted out of the present context."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    made: list[Any] = []
    yield made
    here = control_flow_context(graph)
    new = graph.get_operations()[before:]
    made += [op for op in new if control_flow_context(op) is here]
