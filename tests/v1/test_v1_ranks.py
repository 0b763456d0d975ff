# SPDX-License-Identifier: Apache-2.0
"""Two real ranks train with the `tf.compat.v1` flavour."""

import functools
from pathlib import Path

import pytest
from launch import run_ranks
from loops import WITHOUT_V2
from reports import read_reports

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.tf,
    pytest.mark.skipif(WITHOUT_V2, reason="starts processes of its own"),
]
WORKER = Path(__file__).parent / "ranks_worker.py"
RUNS = {"mpi": "all", "collective": "in_function,in_graph_nested"}


@functools.cache
def run(engine):
    results = run_ranks(WORKER, 2, engine, RUNS[engine], timeout_s=250)
    return [(read_reports(result.output), result.output) for result in results]


def both(name, engine="mpi"):
    """What the two ranks reported."""
    for reports, output in run(engine):
        assert name in reports, f"did not get to {name}:\n{output[-3000:]}"
    return [reports[name] for reports, _ in run(engine)]


def same(name, engine="mpi"):
    first, second = both(name, engine)
    assert first == second
    return first


GOOD = [[0.25, 1.25], [[0.75, 0.75], [0.75, 0.75], [0.5, 0.5]], 2.5]
"""The weights after a step with the mean of both ranks' gradients, dense and sparse."""


@pytest.mark.parametrize(
    "name, engine",
    [
        ("in_function", "mpi"),
        ("in_function", "collective"),
        ("eagerly", "mpi"),
        ("in_graph_nested", "mpi"),
        ("in_graph_nested_the_other_way", "mpi"),
        ("in_graph_with_tail", "mpi"),
    ],
)
def test_overflow_of_one_rank_is_skipped_by_all(name, engine):
    report = same(name, engine)
    first, second, third = report["weights"]
    assert first == GOOD
    assert second == first
    assert third[0] == ([-1.625, -0.625] if "tail" in name else [-1.25, -0.25])
    assert report["events"] == [[2, "back off", "v0", 1]]
    assert (report["scale"], report["steps"]) == (4.0, 2)


def test_session_with_an_engine_that_has_none():
    assert "not in a `tf.compat.v1.Session`" in same("in_graph_nested", "collective")


def test_common_decision_without_aggregation():
    assert both("deciding_only") == [[[1.0], [0.5]], [[1.0], [0.0]]]


def test_overflow_made_by_the_sum_is_not_applied():
    assert same("sum_that_overflows") == [[1.0], [0.0], [None]]


def test_saturated_gradient_of_one_rank():
    assert same("saturated") == [[1.0], [0.5], [1]]


def test_different_weights_are_noticed_and_put_right():
    assert same("different_weights") == [True, 0.0]
    assert same("hook") == [0.25, 1]


def test_two_optimizers_in_turn():
    assert same("two_optimizers_in_turn") == [[1.0, 0.25], [0.5, 0.25], [0.5, -0.25]]


def test_one_optimizer_for_two_lists_of_variables():
    assert same("one_optimizer_for_two_lists") == [0.25, 0.0]


def test_accumulation_in_a_conditional():
    assert same("accumulating") == [0.25, 1]
