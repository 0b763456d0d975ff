# SPDX-License-Identifier: Apache-2.0
"""Several ranks with a share of a batch each do what one rank does with all of it."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


@in_runs_of("equivalence")
def test_same_as_one_rank_with_the_whole_batch(ranks):
    report = ranks.same("same_as_one_rank")
    assert len(report) == 5
    for name, each in report.items():
        assert each["moved"] > 1e-2, name
        assert each["difference"] <= 1e-6, name


@in_runs_of("equivalence")
def test_clipping_sees_the_aggregate(ranks):
    report = ranks.same("clipping_sees_the_mean")
    assert report["global_clipnorm"] == -1.0
    assert report["clipnorm"] == -1.0
    assert report["sum, not clipped"] == pytest.approx(-99.8, rel=1e-6)


@in_runs_of("accumulating")
def test_local_accumulation_sends_once(ranks):
    report = ranks.same("accumulates_locally")
    assert report["k steps"]["weights"] == report["one step"]["weights"]
    assert report["k steps"]["sends"] == [0, 1, 0, 1]
    assert report["one step"]["sends"] == [1, 1]
    assert report["one step"]["first"] == pytest.approx(-0.2, abs=1e-3)


@in_runs_of("accumulating")
def test_overflow_in_an_accumulated_step(ranks):
    report = ranks.same("accumulates_with_overflows")
    finite = [applied for _, applied, _ in report["steps"]]
    assert finite == [True, False, True, True, True]
    # (1 + 3) / 2, then (5 + 7) / 2: the overflowed one has no part in a mean.
    assert [weight for weight, *_ in report["steps"]] == [0.0, 0.0, -2.0, -2.0, -8.0]
    assert report["events"] == [[2, "skip", 1, "v"]]


@in_runs_of("accumulating")
def test_saturated_gradients_have_no_part_in_an_accumulated_step(ranks):
    applied, weight, updates = ranks.same("accumulates_where_hardware_saturates")
    assert applied == [True, False, True]
    assert (weight, updates) == (0.0, 1)


@in_runs_of("accumulating")
def test_accumulation_refuses_a_float16_wire(ranks):
    report = ranks.same("accumulates_on_a_narrow_wire")
    error, weight = report["fp16"]
    assert error.startswith("ValueError")
    assert "bf16" in error
    assert weight == 0.0
    error, weight = report["bf16"]
    assert error is None
    assert weight == pytest.approx(-1e-8, rel=1e-2)
