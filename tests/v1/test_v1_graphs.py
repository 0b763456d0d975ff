# SPDX-License-Identifier: Apache-2.0
"""What scripts do with a graph around the steps: collections, meta graphs, the manager's scale."""

import pytest
import tensorflow as tf
from loops import INF, manager, scaled, session, v1


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


def test_a_scale_that_is_a_constant_is_told(graph):
    early = manager()
    early.get_loss_scale()
    with pytest.warns(UserWarning, match="gave the first loss scale as a constant"):
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
