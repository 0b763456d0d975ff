# SPDX-License-Identifier: Apache-2.0
"""What scripts do with a graph around the steps: collections, meta graphs, the manager's scale."""

import pytest
import tensorflow as tf
from loops import INF, WITHOUT_V2, manager, scaled, session, v1


def test_the_train_op_is_the_whole_step_and_the_graph_can_be_imported(graph, tmp_path):
    w = v1.get_variable("w", initializer=[1.0, 2.0])
    op = scaled(v1.train.AdamOptimizer(0.1)).minimize(tf.reduce_sum(w), name="train")
    assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [op]
    with session() as opened:
        opened.run(op)
        v1.train.Saver().save(opened, str(tmp_path / "saved"))
    with tf.Graph().as_default():
        saver = v1.train.import_meta_graph(str(tmp_path / "saved.meta"))
        (again,) = v1.get_collection(v1.GraphKeys.TRAIN_OP)
        with v1.Session() as opened:
            saver.restore(opened, str(tmp_path / "saved"))
            opened.run(again)
            w = opened.run(v1.trainable_variables()[0])
    assert w.tolist() == pytest.approx([0.8, 1.8])


def test_a_scale_asked_for_before_there_is_an_optimizer_is_the_one_it_uses(graph):
    w, x = v1.get_variable("w", initializer=1.0), v1.placeholder(tf.float32, [])
    early = manager(grow=1)
    doubled = early.get_loss_scale() * 2.0
    optimizer = scaled(scale_manager=early)
    with pytest.warns(UserWarning, match="loss scale already"):
        optimizer.compute_gradients(w * early.get_loss_scale())
    op = optimizer.minimize(w * x)
    assert len([v for v in v1.global_variables() if "loss_scale" in v.name]) == 1
    with session() as opened:
        for feed, before, after in ((1.0, 8.0, 16.0), (INF, 16.0, 8.0), (1.0, 8.0, 16.0)):
            assert opened.run(["loss_scale:0", op], {x: feed})[0] == before
            fetched = opened.run(["loss_scale:0", "good_steps:0", "bad_steps:0", doubled])
            assert fetched == [after, 0, 0, 2 * after]


def test_a_scale_fetched_by_name_with_a_step_inside_a_conditional_is_that_before(graph):
    w, x = v1.get_variable("w", initializer=1.0), v1.placeholder(tf.float32, [])
    optimizer = scaled(scale_manager=manager(grow=1))
    pairs = optimizer.compute_gradients(w * x)
    op = v1.cond(x > 0.0, lambda: optimizer.apply_gradients(pairs), tf.no_op)
    with session() as opened:
        seen = [opened.run(["loss_scale:0", op], {x: feed})[0] for feed in (1.0, -1.0, INF, 1.0)]
    assert seen == [8.0, 16.0, 16.0, 8.0]


@pytest.mark.skipif(WITHOUT_V2, reason="reads a scale eagerly")
def test_a_scale_that_is_a_constant_is_told():
    early = manager()
    early.get_loss_scale()
    with (
        tf.Graph().as_default(),
        pytest.warns(UserWarning, match="gave the first loss scale as a constant"),
    ):
        scaled(scale_manager=early)


def test_gradients_thrown_away_do_not_count_against_those_applied_as_they_are():
    w = tf.Variable(1.0)
    optimizer = scaled(v1.train.GradientDescentOptimizer(0.5))
    optimizer.compute_gradients(lambda: w * INF, [w])
    optimizer.apply_gradients(optimizer.compute_gradients(lambda: w * 1.0, [w]))
    assert (float(w), int(optimizer.skipped_steps)) == (0.5, 0)
    # Added up with others, they do.
    optimizer.compute_gradients(lambda: w * INF, [w])
    pairs = optimizer.compute_gradients(lambda: w * 1.0, [w])
    optimizer.apply_gradients([(2 * gradient, variable) for gradient, variable in pairs])
    assert (float(w), int(optimizer.skipped_steps)) == (0.5, 1)
