# SPDX-License-Identifier: Apache-2.0
"""Five batches on one rank, four on the other; and what callbacks do on several ranks."""

import json
import re
from pathlib import Path

import pytest
from launch import run_ranks

WORKER = Path(__file__).with_name("uneven_worker.py")
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def together():
    return run_ranks(WORKER, 2, "mpi", "together", env={"NPU_KERAS_STEPS": "4"}, timeout_s=280)


def test_equal_steps_and_a_step_limit_end_with_equal_weights(together):
    for result in together:
        assert result.returncode == 0, result.output
        assert "all is well" in result.output


def test_rank_0_tells_of_the_overflow_of_rank_1(together):
    first, second = (result.output for result in together)
    line = r"1 of 4 steps skipped \(2\).*first overflow in \S+ \(and 5 more\) on rank 1;"
    assert len(re.findall(line, first)) == 1, first
    assert "skipped" not in second
    event = json.loads(re.search(r"^event (.*)$", first, re.M)[1])
    assert (event["attempt"], event["kind"], event["rank"]) == (2, "back off", 1)


def failed(mode):
    """Runs without either; returns rank 0's error, and the result of rank 1."""
    results = run_ranks(WORKER, 2, "mpi", mode)
    assert [re.search(r"^steps (\d)$", result.output, re.M)[1] for result in results] == ["4", "4"]
    return results


def error_of(result):
    assert result.returncode == 3, result.output
    assert float(re.search(r"^waited (.*)$", result.output, re.M)[1]) < 8 + 3
    return re.search(r"^error (.*)$", result.output, re.M)[1]


def test_without_them_a_rank_that_has_left_is_named():
    first, second = failed("leaves")
    assert second.returncode == 0, second.output
    assert re.search(r"Rank 1 has left after \d+ collectives", error_of(first))


def test_without_them_every_rank_names_the_one_it_waits_for():
    first, second = map(error_of, failed("stays"))
    assert re.search(r"Rank 1 has started \d+ collectives, this rank \d+", first)
    assert re.search(r"Waited 8 s for all_reduce of", first)
    assert "Missing: rank 0. Waited 8 s for barrier" in second or "Rank 0 has left" in second
