# SPDX-License-Identifier: Apache-2.0
"""`npu_keras.distribute`, and the settings of a run."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


@in_runs_of("functions")
def test_rank_and_size(ranks):
    assert ranks("who_is_here") == [[0, 2, ranks.engine, True], [1, 2, ranks.engine, True]]


@in_runs_of("functions")
def test_all_reduce(ranks):
    report = ranks.same("reductions")
    assert report["mean"] == [1.5, -1.5]
    assert report["sum"] == [3.0, -3.0]
    assert report["max"] == [2.0, -1.0]
    assert report["min"] == [1.0, -2.0]
    assert report["list"] == [3, None], "the mean of 3 and 4, rounded down as integers are"
    assert report["largest"] == pytest.approx(3.4e38, rel=1e-6)
    assert report["float16"] == 60000.0
    assert report["a number"] == 2.5
    assert report["graph"] == [[3.0, -3.0], [5.0, -1.0]]
    assert report["unknown"].endswith("Received: reduction='median'")
    assert report["bool"].startswith("TypeError: Expected numbers")


@in_runs_of("functions")
def test_calls_in_a_long_loop_use_one_lane(ranks):
    assert ranks.same("many_in_a_loop") == {"total": 600.0, "new lanes": 0}


@in_runs_of("functions")
def test_broadcast(ranks):
    reports = ranks("broadcasts")
    assert reports[0]["before"] != reports[1]["before"]
    assert reports[0]["after"] == reports[1]["after"] == reports[1]["before"]
    for report in reports:
        assert report["mean"] == [1.0, 1.0]
        assert report["flags"] == [True, 0]
        assert report["no such rank"].startswith("ValueError")
        assert "Received: root_rank=2" in report["no such rank"]


@in_runs_of("functions")
def test_sharded_dataset(ranks):
    first, second = ranks("sharded_dataset")
    assert first["batch"] == second["batch"] == 4
    assert (first["mine"], second["mine"]) == ([0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11])
    assert first["error"].startswith("ValueError")
    assert "Received: global_batch_size=5" in first["error"]


@in_runs_of("functions")
def test_run_config_must_agree(ranks):
    agree, disagree, other_way, agree_too, *without = ranks.same("run_config")
    assert agree is agree_too is None
    assert without == [None, None]
    for message in (disagree, other_way):
        assert message.startswith("ValueError: `is_tailing_optimization`")
    assert "False for the optimizer, True for NPURunConfig" in disagree
    assert "True for the optimizer, False for NPURunConfig" in other_way
