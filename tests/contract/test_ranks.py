# SPDX-License-Identifier: Apache-2.0
"""Several ranks take each step together, over every engine and in every flavour."""

import functools
import json
import os
from pathlib import Path

import pytest
from flavours import FLAVOURS
from launch import run_ranks

FOLDER = Path(__file__).parent
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]
ENGINES = {"mpi": 3, "collective": 2}


# A session has no collective engine, which is told at the first step.
PAIRS = [
    (engine, flavour.name)
    for engine in ENGINES
    for flavour in FLAVOURS
    if (engine, flavour.name) != ("collective", "v1 graph")
]


@functools.cache
def found(engine):
    """What each rank has reported, by flavour and check."""
    path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    ranks = run_ranks(
        FOLDER / "rank_worker.py",
        ENGINES[engine],
        engine,
        timeout_s=200,
        env={"PYTHONPATH": path},
    )
    for rank in ranks:
        assert rank.returncode == 0, rank.output
    lines = [
        [json.loads(line[6:]) for line in rank.output.splitlines() if line.startswith("found ")]
        for rank in ranks
    ]
    return [{(name, check): what for name, check, what in each} for each in lines]


@pytest.fixture(params=PAIRS, ids=lambda pair: "-".join(pair))
def common(request):
    """Function of a check's name that returns what all ranks have found alike."""
    engine, name = request.param
    reports = found(engine)

    def of(check):
        each = [report[name, check] for report in reports]
        assert all(other == each[0] for other in each)
        return each[0], len(each)

    return of


def test_a_session_has_no_collective_engine():
    for report in found("collective"):
        assert "but not in a `tf.compat.v1.Session`" in report["v1 graph", "refused"]


def test_one_rank_s_overflow_skips_on_all(common):
    report, size = common("agreement")
    mean = (size - 1) / 2  # of the ranks' numbers
    assert report["weights"] == [[-mean - 1.0, -mean - 1.0]]
    assert report["scale"] == 4.0
    assert [event[:3] for event in report["events"]] == [
        [2, "back off", size - 1],
        [3, "back off", 0],
        [4, "back off", 0],
        [5, "back off", 0],
    ]


def test_one_rank_s_status_register_skips_on_all(common):
    report, size = common("saturation")
    assert report["weights"] == [-2.0]
    assert [event[:3] for event in report["events"]] == [[2, "back off", size - 1]]


def test_sparse_rows_and_a_gradient_of_one_rank_alone(common):
    report, size = common("sparse_and_missing")
    # Row 0: twice by rank 0, once by each other one; row 2: once by each other one.
    assert report["weights"] == [[[-2.0 * (size + 1)], [0.0], [-2.0 * (size - 1)]], -2.0]
    assert report["events"] == []


def test_both_nestings(common):
    report, size = common("nestings")
    assert report["outside"] == report["inside"]
    assert report["outside"]["weights"] == [-(size - 1) / 2]
    assert [event[:3] for event in report["inside"]["events"]] == [[2, "back off", size - 1]]


def test_decisions_without_aggregation(common):
    report, size = common("deciding_together")
    assert report["weights"] == [-2.0]
    assert report["counters"]["skipped_steps"] == 1
