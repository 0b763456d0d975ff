# SPDX-License-Identifier: Apache-2.0
"""The communication tail changes when updates are made, and no bit of them."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


@in_runs_of("tail")
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Nadam, fp16"])
def test_same_bits_with_and_without(ranks, name):
    """After 20 steps, of which 3 overflowed: in the first bucket, in the last, in between."""
    off, on = ranks.same("tail_on_and_off")[name]
    assert on == off
    assert (on["iterations"], on["skipped"], on["scale"]) == (17, 3, 4.0)


@in_runs_of("tail")
def test_a_step_is_one_update_or_as_many_as_buckets(ranks):
    report = ranks.same("updates_of_a_step")
    assert report["off"] == [[["v0", "v1", "v2"]], 1]
    assert sorted(report["on"][0]) == [["v0"], ["v1"], ["v2"]]
    assert report["on"][1] == 1


@in_runs_of("tail")
@pytest.mark.parametrize(
    "name, reason",
    [
        ("global_clipnorm", "global_clipnorm needs every gradient"),
        ("EMA", "moving average"),
        ("accumulation", "accumulated gradients"),
    ],
)
def test_nothing_to_overlap_is_said_once(ranks, name, reason):
    report = ranks.same("nothing_to_overlap")[name]
    assert report["equal"]
    (line,) = report["said"]
    assert line.startswith("INFO is_tailing_optimization has nothing to overlap")
    assert reason in line


@in_runs_of("tail")
def test_ignored_without_is_distributed(ranks):
    for report in ranks("tail_without_ranks"):
        assert report["weight"] == pytest.approx(0.7)
        said = ["INFO is_tailing_optimization is ignored without is_distributed=True"]
        assert report["said"] == said


@in_runs_of("tail")
@pytest.mark.parametrize("name, rank", [("cast", 0), ("sum", None)])
def test_overflow_that_aggregation_makes(ranks, name, rank):
    report = ranks.same(f"{name}_overflow_with_tail")
    assert report["weights"] == report["untouched"]
    assert report["events"] == [[1, "skip", rank, "v"]]
