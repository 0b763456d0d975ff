# SPDX-License-Identifier: Apache-2.0
"""Private names of TensorFlow that graphs of `tf.compat.v1` are kept in order with."""

import logging

import pytest
import tensorflow as tf
from tensorflow.python.util import deprecation

from npu_keras._upstream import (
    control_flow_context,
    is_usable_here,
    keeps_order,
    silence_deprecations,
)
from npu_keras._upstream_compilation import call_branches

v1 = tf.compat.v1


def test_who_keeps_the_order():
    seen = {"eager": keeps_order()}

    def note(name):
        seen[name] = keeps_order()
        return tf.constant(True)

    @tf.function
    def traced():
        note("function")
        return tf.cond(tf.constant(True), lambda: note("branch"), lambda: tf.constant(False))

    traced()
    with tf.Graph().as_default():
        note("graph")
        tf.cond(tf.constant(True), lambda: note("branch in a graph"), lambda: tf.constant(False))
    assert seen == {
        "eager": True,
        "function": True,
        "branch": True,
        "graph": False,
        "branch in a graph": False,
    }


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_can_be_used_where(version):
    """From a branch of a conditional what is outside; never the other way round."""
    switched = v1.control_flow_v2_enabled()
    (v1.disable_control_flow_v2 if version == "v1" else v1.enable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            outside = tf.constant(1.0).op
            inside = []

            def branch():
                inside.append(tf.constant(2.0).op)
                context = control_flow_context(v1.get_default_graph())
                assert (context is None) == (version == "v2")
                assert control_flow_context(inside[0]) is context
                assert is_usable_here(outside)
                assert is_usable_here(inside[0])
                return tf.constant(3.0)

            tf.cond(v1.placeholder(tf.bool, []), branch, lambda: tf.constant(4.0))
            assert control_flow_context(graph) is None
            assert is_usable_here(outside)
            assert not is_usable_here(inside[0])
        with tf.Graph().as_default():
            assert not is_usable_here(outside)
    finally:
        (v1.enable_control_flow_v2 if switched else v1.disable_control_flow_v2)()


def test_a_conditional_that_calls_its_branches():
    """Its inputs pass through no switches once TensorFlow has prepared the graph to be run."""
    variable = tf.Variable(0.0)

    def step(called):
        def add():
            variable.assign_add(1.0)
            return tf.constant(True)

        result = tf.cond(tf.constant(True), add, lambda: tf.constant(False))
        if called:
            call_branches(result)
        return result

    for called in (True, False):
        function = tf.function(lambda c=called: step(c), autograph=False)
        concrete = function.get_concrete_function()
        (node,) = [n for n in concrete.graph.as_graph_def().node if n.op == "If"]
        assert node.attr["_lower_using_switch_merge"].b is not called
        assert bool(concrete())
    assert float(variable) == 2.0
    without = tf.function(lambda: call_branches(tf.constant(True)), autograph=False)
    without.get_concrete_function()


def test_deprecations_that_are_not_logged(caplog, monkeypatch):
    def old():
        deprecation.deprecated(None, "Nothing.", warn_once=False)(lambda: None)()

    monkeypatch.setattr(deprecation, "_PRINT_DEPRECATION_WARNINGS", True)
    with caplog.at_level(logging.WARNING, "tensorflow"):
        tf.get_logger().propagate, before = True, tf.get_logger().propagate
        try:
            old()
            assert "deprecated" in caplog.text
            caplog.clear()
            silence_deprecations()
            old()
        finally:
            tf.get_logger().propagate = before
    assert not caplog.text
