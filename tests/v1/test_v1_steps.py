# SPDX-License-Identifier: Apache-2.0
"""What a step of the `tf.compat.v1` flavour does, and what a skipped one leaves alone."""

import numpy as np
import pytest
import tensorflow as tf
from loops import CONTEXTS, INF, NAN, Loop, assert_equal, manager, scaled, session, v1, weighted

from npu_keras import FixedLossScaleManager
from npu_keras.v1 import NPUOptimizer


@pytest.mark.parametrize("context", CONTEXTS)
def test_skipped_step_leaves_no_trace(context):
    clip = 1e6

    def clipped(pairs):
        kept = [(tf.clip_by_norm(g, clip) if g is not None else None, v) for g, v in pairs]
        assert kept[-1][0] is None
        return kept

    loop = Loop(
        context,
        lambda: scaled(v1.train.AdamOptimizer(0.1)),
        [[1.0, 2.0], 3.0, 4.0],
        weighted,
        [1.0],
        clipped,
    )
    loop.step(1.0)
    before = loop.everything()
    assert before[-1] == 1
    for bad in (INF, NAN):
        loop.step(bad)
        assert_equal(loop.everything(), before)
    assert loop.read(loop.optimizer.loss_scale) == 2.0
    assert not loop.read(loop.optimizer.last_step_finite)
    loop.step(1.0)
    assert loop.read(loop.global_step) == 2
    np.testing.assert_allclose(loop.read(loop.variables[0]), [0.8, 1.8], rtol=1e-5)
    first, second = loop.journal()
    assert (first.kind, first.attempt, first.scale_before, first.scale_after) == (
        "back off",
        2,
        8.0,
        4.0,
    )
    assert (first.bad_variables, first.variable, first.infs, first.nans) == (2, "v0", 3, 0)
    assert (second.nans, second.forward, second.rank) == (3, True, None)


def test_names_in_a_graph(graph):
    variable = v1.Variable([1.0, 2.0], name="w")
    x = v1.placeholder(tf.float32, [])
    step = v1.train.get_or_create_global_step()
    optimizer = scaled(v1.train.AdamOptimizer(0.25), manager(grow=2))
    with tf.name_scope("train"):
        op = optimizer.minimize(tf.reduce_sum(variable) * x, step, name="train_op")
    assert op.name == "train/train_op"
    names = [v.name for v in v1.global_variables()]
    kept = ("loss_scale", "good_steps", "bad_steps")
    assert {f"loss_scaling/{name}:0" for name in kept} <= set(names)
    assert [graph.get_tensor_by_name(f"{name}:0").dtype.name for name in kept] == [
        *("float32", "int32", "int32")
    ]
    assert {"train/beta1_power:0", "w/Adam:0", "w/Adam_1:0"} <= set(names)
    assert not v1.trainable_variables()[1:]
    assert optimizer.good_steps.dtype.base_dtype == tf.int32
    assert optimizer.get_slot(variable, "m").name == "w/Adam:0"
    assert optimizer.get_slot_names() == ["m", "v"]
    assert optimizer._lr == 0.25
    assert optimizer.get_name() == "NPULossScaleOptimizer"
    with pytest.raises(AttributeError, match="no_such"):
        _ = optimizer.no_such


def test_finite_flag_and_scale_are_fetched_with_the_step(graph):
    variable = v1.Variable(1.0)
    x = v1.placeholder(tf.float32, [])
    scale_manager = manager()
    op = scaled(scale_manager=scale_manager).minimize(variable * x)
    init = v1.global_variables_initializer()
    fetched = ["overflow_status_reduce_all:0", scale_manager.get_loss_scale()]
    graph.finalize()
    with v1.Session() as opened:
        opened.run(init)
        assert opened.run([op, fetched[0]], {x: INF})[1] == np.False_
        assert opened.run(fetched[1]) == 4.0
        assert opened.run([op, fetched[0]], {x: 1.0})[1] == np.True_


@pytest.mark.parametrize("context", CONTEXTS)
def test_overflow_made_by_the_script_counts(context):
    """What stands in the gradients that are applied, too, is looked at."""

    def spoil(pairs):
        return [(g / (g - 3.0), v) if g is not None else (g, v) for g, v in pairs]

    loop = Loop(context, scaled, [1.0, 2.0, 5.0], weighted, [1.0], spoil)
    loop.step(3.0)
    assert loop.read(loop.variables) == [1.0, 2.0, 5.0]
    loop.step(4.0)
    assert loop.read(loop.variables) == [-1.0, 0.0, 5.0]
    (event,) = loop.journal()
    assert (event.kind, event.bad_variables, event.infs) == ("back off", 2, 2)


@pytest.mark.parametrize("context", CONTEXTS)
def test_sparse_gradients_stay_sparse(context):
    def rows(variables, x):
        return tf.reduce_sum(tf.gather(variables[0], [2, 0, 2]) * x)

    seen = []

    def look(pairs):
        seen.append(type(pairs[0][0]))
        return pairs

    loop = Loop(context, scaled, [np.ones((4, 2))], rows, [np.ones((3, 1))], look)
    loop.step([[1.0], [2.0], [0.5]])
    want = np.ones((4, 2))
    want[0], want[2] = 0.0, 1 - 0.75
    np.testing.assert_array_equal(loop.read(loop.variables[0]), want)
    # 3e38 / 8 is finite, and so is each row, but not the sum of the rows of one index.
    loop.step([[3e37], [0.0], [3e37]])
    np.testing.assert_array_equal(loop.read(loop.variables[0]), want)
    assert seen[0] is tf.IndexedSlices


def test_tail_without_ranks(graph, caplog):
    variable = v1.Variable(1.0)
    x = v1.placeholder(tf.float32, [])
    with caplog.at_level("INFO", logger="npu_keras"):
        optimizer = NPUOptimizer(
            v1.train.GradientDescentOptimizer(0.5),
            loss_scale_manager=manager(),
            is_distributed=False,
            is_loss_scale=True,
            is_tailing_optimization=True,
            name="tail",
        )
    assert "ignored" in caplog.text
    op = optimizer.minimize(variable * x)
    with session() as opened:
        assert not opened.run([op, "overflow_status_reduce_all:0"], {x: INF})[1]
        assert opened.run([op, "overflow_status_reduce_all:0"], {x: 1.0})[1]
        assert opened.run(variable) == 0.5


def test_two_optimizers_in_one_session_step(graph):
    """Each with a scale of its own, for variables of its own."""
    first, second = v1.Variable(1.0, name="a"), v1.Variable(1.0, name="b")
    x, y = v1.placeholder(tf.float32, []), v1.placeholder(tf.float32, [])
    optimizers = [scaled(), scaled()]
    ops = [
        optimizers[0].minimize(first * x, var_list=[first]),
        optimizers[1].minimize(second * y, var_list=[second]),
    ]
    with session() as opened:
        opened.run(ops, {x: INF, y: 1.0})
        assert opened.run([first, second]) == [1.0, 0.5]
        assert opened.run([o.loss_scale for o in optimizers]) == [4.0, 8.0]


def test_unchecked_updates_are_applied(graph):
    variable = v1.Variable(1.0)
    x = v1.placeholder(tf.float32, [])
    fixed = FixedLossScaleManager(4.0, enable_overflow_check=False)
    optimizer = scaled(v1.train.MomentumOptimizer(0.1, 0.9), fixed)
    step = v1.train.get_or_create_global_step()
    op = optimizer.minimize(variable * x, step)
    with session() as opened:
        opened.run(op, {x: 1.0})
        opened.run(op, {x: 1.0})
        # 0.1, then 0.1 + 0.09: the slot's initializer is no part of the step.
        assert opened.run(variable) == pytest.approx(0.71)
        opened.run(op, {x: INF})
        assert not np.isfinite(opened.run(variable))
        assert opened.run(step) == 3


def test_protected_statistics_in_a_graph(graph):
    """Moving averages written by the forward pass go back to the last good step."""
    variable, mean = v1.Variable(1.0), v1.Variable(0.5, trainable=False)
    x = v1.placeholder(tf.float32, [])
    optimizer = scaled()
    assert optimizer.protect([mean])
    with tf.control_dependencies([v1.assign(mean, mean * 0.5 + x)]):
        op = optimizer.minimize(variable * x)
    with session() as opened:
        opened.run(op, {x: 1.0})
        assert opened.run(mean) == 1.25
        opened.run(op, {x: NAN})
        assert opened.run(mean) == 1.25


def test_float16_gradients_keep_their_dtype(graph):
    """2**32 would overflow in float16, and 2**-24 / 8 vanish; neither happens."""
    variable = v1.Variable(np.float16(1.0))
    x = v1.placeholder(tf.float16, [])
    optimizer = scaled(v1.train.GradientDescentOptimizer(1.0), manager(2.0**10))
    ((gradient, _),) = pairs = optimizer.compute_gradients(variable * x, [variable])
    assert gradient.dtype == tf.float16
    op = optimizer.apply_gradients(pairs)
    with session() as opened:
        assert opened.run([op, gradient], {x: 2.0**-20})[1] == 2.0**-20
        assert opened.run(variable) == 1.0
        opened.run(op, {x: 100.0})  # 102400 scaled
        assert opened.run([variable, optimizer.loss_scale]) == [1.0, 512.0]


def test_grad_loss_and_none(graph):
    variable, unused = v1.Variable([1.0, 2.0]), v1.Variable(1.0)
    optimizer = scaled()
    pairs = optimizer.compute_gradients(
        variable * 2.0, [variable, unused], grad_loss=tf.constant([1.0, 3.0])
    )
    assert pairs[1] == (None, unused)
    with session() as opened:
        np.testing.assert_array_equal(opened.run(pairs[0][0]), [2.0, 6.0])
    with pytest.raises(ValueError, match="at least one variable"):
        optimizer.apply_gradients([(None, unused)])
