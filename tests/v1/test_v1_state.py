# SPDX-License-Identifier: Apache-2.0
"""What lasts from step to step: sums of micro-batches, and what is saved."""

import numpy as np
import pytest
import tensorflow as tf
from loops import INF, WITHOUT_V2, Loop, assert_equal, manager, scaled, session, v1, weighted


def accumulating_graph(optimizer, every=2):
    """Micro-batches added up in a variable, applied inside a `tf.cond` by every second one."""
    variable = v1.Variable([1.0, 1.0], name="w")
    total = v1.Variable([0.0, 0.0], name="w/accum", trainable=False)
    count = v1.Variable(0, trainable=False, name="local_step")
    global_step = v1.train.get_or_create_global_step()
    x = v1.placeholder(tf.float32, [])
    ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(variable) * x, [variable])
    with tf.control_dependencies([gradient]):
        counted = v1.assign_add(count, 1)
    with tf.control_dependencies([counted]):
        added = v1.assign_add(total, gradient)

    def update():
        with tf.control_dependencies([added]):
            value = tf.identity(added)
        with tf.control_dependencies([optimizer.apply_gradients([(value, variable)], global_step)]):
            return tf.group(v1.assign(total, tf.zeros_like(total)))

    op = v1.cond(tf.equal(counted % every, 0), update, lambda: tf.group(added))
    return op, x, [variable, global_step, total]


def test_accumulation_inside_a_conditional(graph):
    optimizer = scaled(scale_manager=manager(grow=2))
    op, x, watched = accumulating_graph(optimizer)
    state = [*watched, optimizer.loss_scale, optimizer.attempted_steps]
    with session() as opened:
        opened.run(op, {x: 0.5})
        weights, step, total, scale, attempted = opened.run(state)
        assert (step, attempted) == (0, 0), "the manager moves once per apply"
        np.testing.assert_array_equal(total, [0.5, 0.5])
        opened.run(op, {x: 0.25})
        weights, step, total, scale, attempted = opened.run(state)
        np.testing.assert_array_equal(weights, [1 - 0.375] * 2)
        assert (step, attempted, scale) == (1, 1, 8.0)
        np.testing.assert_array_equal(total, [0.0, 0.0])
        opened.run(op, {x: INF})  # the first of two micro-batches
        opened.run(op, {x: 1.0})
        weights, step, total, scale, attempted = opened.run(state)
        np.testing.assert_array_equal(weights, [1 - 0.375] * 2)
        assert (step, attempted, scale) == (1, 2, 4.0)
        np.testing.assert_array_equal(total, [0.0, 0.0])


def test_saturated_micro_batch_is_remembered(graph):
    """Without the loss scale a saturated value looks like any other; it must not be applied."""
    optimizer = scaled(overflow_mode="saturation")
    op, x, watched = accumulating_graph(optimizer)
    largest = np.finfo(np.float32).max
    with session() as opened:
        opened.run(op, {x: largest})
        opened.run(op, {x: 1.0})
        weights, step, _ = opened.run(watched)
        np.testing.assert_array_equal(weights, [1.0, 1.0])
        assert step == 0
        opened.run(op, {x: 1.0})
        opened.run(op, {x: 1.0})
        assert opened.run(watched)[1] == 1


def test_saver_round_trip(graph, tmp_path):
    variable = v1.Variable(1.0, name="w")
    x = v1.placeholder(tf.float32, [])
    optimizer = scaled(v1.train.MomentumOptimizer(0.5, 0.5), manager(grow=3))
    op = optimizer.minimize(variable * x)
    saver = v1.train.Saver()
    watched = [variable, optimizer.get_slot(variable, "momentum"), optimizer.variables()]
    with session() as opened:
        for feed in (1.0, 1.0, 1.0, INF, 1.0):
            opened.run(op, {x: feed})
        assert opened.run([optimizer.loss_scale, optimizer.good_steps]) == [8.0, 1]
        path = saver.save(opened, str(tmp_path / "saved"), write_meta_graph=False)
        saved = opened.run(watched)
        opened.run(op, {x: INF})
        after = opened.run(watched)
    names = {name for name, _ in tf.train.list_variables(path)}
    kept = {"loss_scale", "good_steps", "bad_steps"}
    assert {f"loss_scaling/{name}" for name in kept} <= names
    with session() as opened:
        saver.restore(opened, path)
        assert_equal(tf.nest.flatten(opened.run(watched)), tf.nest.flatten(saved))
        opened.run(op, {x: INF})
        assert_equal(tf.nest.flatten(opened.run(watched)), tf.nest.flatten(after))


@pytest.mark.skipif(WITHOUT_V2, reason="saves what is eager")
def test_checkpoint_round_trip(tmp_path):
    def make():
        loop = Loop(
            "eager",
            lambda: scaled(v1.train.AdamOptimizer(0.5), manager(grow=3)),
            [1.0, 2.0],
            weighted,
            [1.0],
        )
        tracked = {f"v{i}": v for i, v in enumerate(loop.variables)}
        return loop, tf.train.Checkpoint(optimizer=loop.optimizer, **tracked)

    loop, checkpoint = make()
    for feed in (1.0, 2.0, INF):
        loop.step(feed)
    path = checkpoint.save(str(tmp_path / "saved"))
    other, restored = make()
    status = restored.restore(path)  # before the slots are made
    other.step(INF)
    status.assert_existing_objects_matched()
    assert other.read(other.optimizer.loss_scale) == 2.0
    loop.step(INF)
    for each in (loop, other):
        each.step(3.0)
    assert_equal(loop.everything()[:-1], other.everything()[:-1])
    assert_equal(
        loop.read([v for v in loop.optimizer.variables() if "event" not in v.name]),
        other.read([v for v in other.optimizer.variables() if "event" not in v.name]),
    )
