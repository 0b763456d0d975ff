# SPDX-License-Identifier: Apache-2.0
"""Whoever overflows, every rank skips, backs off and goes on alike."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


def expected_scales(bad_by_step):
    """8, halved with every other step in which anybody overflowed."""
    bad, scales = 0, []
    for who in bad_by_step:
        bad += bool(who)
        scales.append(8.0 / 2 ** (bad // 2))
    return scales


def expected_events(bad_by_step, variable):
    events = []
    for step, who in enumerate(bad_by_step, start=1):
        if who:
            kind = "back off" if len(events) % 2 else "skip"
            events.append([step, kind, who[0], variable])
    return events


@in_runs_of("decision")
@pytest.mark.parametrize("mode", ["inf_nan", "saturation"])
def test_fit_decides_once_for_all(ranks, mode):
    report = ranks.same(f"fit_{mode}")
    steps, bad = report["steps"], report["bad"]
    assert len(bad) == 2**ranks.size + 1
    assert [step["applied"] for step in steps] == [not who for who in bad]
    assert [step["scale"] for step in steps] == expected_scales(bad)
    assert all(step["finite"] for step in steps)
    assert [step["iterations"] for step in steps] == [1] * (len(bad) - 1) + [2]
    assert len({step["weights"] for step in steps[:-1]}) == 1
    assert steps[-1]["weights"] != steps[0]["weights"]
    kernel = report["events"][0][3]
    assert kernel.endswith("kernel")
    assert report["events"] == expected_events(bad, kernel)


@in_runs_of("decision")
def test_saturated_row_is_an_overflow_of_all(ranks):
    report = ranks.same("saturated_rows")
    assert report["weights"] == [[[1.0, 1.0]] * 6]
    assert report["events"] == [[1, "skip", ranks.size - 1, "v"]]


@in_runs_of("decision")
def test_status_register_of_one_rank_counts_for_all(ranks):
    report = ranks.same("status_register")
    assert report["steps"] == [[False, 8.0], [True, 8.0]]
    assert report["events"] == [[1, "skip", ranks.size - 1, None]]
    assert report["reads"] == 2, "read once in a step: later operations are another step's"


@in_runs_of("decision")
def test_common_decision_without_aggregation(ranks):
    reports = ranks("deciding_only")
    for rank, report in enumerate(reports):
        assert report["events"] == reports[0]["events"]
        steps = report["steps"]
        assert [scale for _, scale in steps] == [scale for _, scale in reports[0]["steps"]]
        assert steps[-1][0] == pytest.approx(1.0 - 2 * 0.1 * (1.0 + rank))
        assert len({weight for weight, _ in steps[:-1]}) == 1
    assert [rank for _, _, rank, _ in reports[0]["events"]][:2] == [0, 1]


@in_runs_of("decision")
def test_overflow_made_by_the_sum_is_not_applied(ranks):
    report = ranks.same("sum_overflows")
    once = 0.1 * ranks.size
    assert report["weights"][0] == pytest.approx(1.0 - once)
    assert report["weights"][1] == pytest.approx([1.0 - once, 2.0 - once])
    assert report["events"] == [[1, "skip", None, "w"]]


@in_runs_of("decision")
def test_overflow_made_by_the_sum_on_a_float16_wire(ranks):
    report = ranks.same("sum_overflows_on_the_wire")
    assert report == {"weights": [1.0], "events": [[1, "skip", None, "v"]]}


@in_runs_of("decision")
def test_nothing_is_skipped_where_nobody_checks(ranks):
    assert ranks.same("nobody_checks") == {"infinite": True, "counters": [0, 2]}


@in_runs_of("decision")
def test_mean_of_largest_float16_numbers(ranks):
    report = ranks.same("mean_of_largest")
    if ranks.size == 2:
        assert report == {"weights": [-6548.0], "applied": True}
    else:  # a third of 65504 rounds up
        assert report == {"weights": [1.0], "applied": False}


@in_runs_of("decision")
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_overflow_of_the_cast_for_the_wire(ranks, kind):
    report = ranks.same("cast_overflows")[kind]
    assert report["applied"] is False
    assert report["weights"] == [[[1.0, 1.0]] * 4]
    assert report["events"] == [[1, "skip", ranks.size - 1, "v"]]
