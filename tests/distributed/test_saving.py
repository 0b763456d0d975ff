# SPDX-License-Identifier: Apache-2.0
"""What one number of ranks has saved goes on alike on another."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


def goes_on_alike(report):
    saved, loaded = report["weights"]
    return saved == loaded and report["counters"] and report["counters after"]


@in_runs_of("saving")
@pytest.mark.parametrize("form", ["keras", "checkpoint"])
def test_saved_by_one_rank(ranks, form):
    report = ranks.same("one_rank_then_all")[form]
    assert report["type"] == "NPUOptimizer"
    assert report["scale"] == 4.0
    assert goes_on_alike(report)


@in_runs_of("saving")
def test_a_class_of_ones_own(ranks):
    report = ranks.same("own_class_of_one_rank_then_all")
    assert (report["type"], report["scale"]) == ("Own", 4.0)
    assert goes_on_alike(report)
    assert report["without custom_objects"].startswith("TypeError: Could not locate class 'Own'")


@in_runs_of("saving")
def test_saved_by_two_ranks(ranks):
    report = ranks.same("all_then_one_rank")
    assert report["scale"] == 4.0
    assert goes_on_alike(report)


@in_runs_of("saving")
def test_restored_on_rank_0_only(ranks):
    report = ranks.same("restored_on_rank_0_only")
    assert report["iterations"] == 42
    assert report["scale"] == 2.0


@in_runs_of("saving")
def test_config_round_trip(ranks):
    assert ranks.same("config_round_trip") is True
