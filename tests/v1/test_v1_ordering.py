# SPDX-License-Identifier: Apache-2.0
"""Side effects in a graph happen, and happen one after the other."""

import pytest
import tensorflow as tf
from loops import WITHOUT_V2, session, v1

from npu_keras.ordering import branch, in_order


def count_up(variable, times):
    """Twice plus one, again and again: any other order gives another number."""
    actions = []
    for _ in range(times):
        actions += [
            lambda: variable.assign(variable * 2.0, read_value=False),
            lambda: variable.assign_add(1.0, read_value=False),
        ]
    return actions


def resource(value=0.0, **settings):
    return v1.Variable(value, use_resource=True, **settings)


def test_order_in_a_graph(graph):
    variable = resource()
    op = tf.group(in_order(*count_up(variable, 5)))
    with session() as opened:
        opened.run(op)
        assert opened.run(variable) == 31.0
        opened.run(op)
        assert opened.run(variable) == 1023.0


def test_branches_take_effect(graph):
    """All of it, although nothing of it is fetched; and only that of the branch taken."""
    left, right, which = resource(), resource(), v1.placeholder(tf.bool, [])
    op = tf.cond(
        which,
        branch(lambda: in_order(*count_up(left, 2)), True),
        branch(lambda: in_order(*count_up(right, 3)), False),
    )
    with session() as opened:
        assert opened.run(op, {which: True})
        assert opened.run([left, right]) == [3.0, 0.0]
        assert not opened.run(op, {which: False})
        assert opened.run([left, right]) == [3.0, 7.0]


def test_an_operation_answers_for_what_made_it(graph):
    """The initializer of a variable made on the way is no part of the step."""
    made = []

    def action():
        made.append(resource(5.0, name="slot"))
        return made[0].assign_add(1.0, read_value=False)

    op = tf.group(in_order(action))
    with session() as opened:
        opened.run(op)
        opened.run(op)
        assert opened.run(made[0]) == 7.0


@pytest.mark.skipif(WITHOUT_V2, reason="is never eager")
def test_eagerly_nothing_is_chained():
    variable = tf.Variable(0.0)
    assert in_order(*count_up(variable, 3)) == []
    assert variable.numpy() == 7.0
