# SPDX-License-Identifier: Apache-2.0
"""Ranks with different data average their logs, and their callbacks act alike."""

import json
import re
from pathlib import Path

import pytest
from launch import run_ranks

WORKER = Path(__file__).with_name("averaging_worker.py")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def ranks():
    results = run_ranks(WORKER, 2, "mpi", timeout_s=180)
    for result in results:
        assert result.returncode == 0, result.output
    return [result.output for result in results]


def said(output, word):
    return re.search(rf"^{word} (.*)$", output, re.M)[1]


def test_logs_are_equal_and_weighted_by_samples(ranks):
    first, second = (json.loads(said(output, "history")) for output in ranks)
    assert first == second
    assert first["loss"][0] == pytest.approx((8 * 1 + 24 * 4) / 32, rel=1e-6)
    assert first["val_loss"][0] == pytest.approx((100 * 1 + 10 * 4) / 110, rel=1e-6)
    assert first["agreed"] == [0.1] * len(first["agreed"])


def test_early_stopping_ends_both_in_one_epoch(ranks):
    # Alone rank 1, whose trend is down, would go on for 9 epochs; the mean of 110 rows is up.
    for output in ranks:
        trend = json.loads(said(output, "history"))["val_trend"]
        assert trend == pytest.approx([(100 * (1 + e) + 10 * (1 - e / 10)) / 110 for e in range(4)])


def test_the_learning_rate_falls_alike(ranks):
    # Without validation rows both weigh the same: 1, 1.45, 1.9, 2.35, so that it falls thrice.
    assert [float(said(output, "rate")) for output in ranks] == [0.125, 0.125]


def test_different_keys_are_named(ranks):
    for output in ranks:
        assert "['accuracy', 'loss'] on rank 0, ['loss'] on rank 1" in said(output, "error")


def test_a_guard_stops_both_after_the_same_step(ranks):
    assert [said(output, "stopped") for output in ranks] == ["10 5"] * 2
    for output, speaks in zip(ranks, (True, False), strict=True):
        assert ("OverflowGuard: Step 10, loss scale 2**11: 5 steps in a row" in output) == speaks
        assert ("Ranks that overflowed: 1." in output) == speaks


def test_ranks_that_have_drifted_apart_are_told_where(ranks):
    for output in ranks:
        assert "differs is 'sequential/dense/bias': rank 1 has another" in said(output, "apart")
