# SPDX-License-Identifier: Apache-2.0
"""Under `tf.distribute` strategies: two replicas in one process, two workers in two."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch import ROOT, run_ranks
from reports import read_reports, told

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]

WORKERS = Path(__file__).parent / "worker"
SKIPPED_AND_EVENTS = [[2, "skip", 0], [3, "back off", 1], [4, "skip", 0]]
"""Of five steps, with an overflow on nobody, 0, 1, both, nobody."""


@functools.cache
def _replicas():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    env.pop("TF_CONFIG", None)
    command = [sys.executable, str(WORKERS / "replicas.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return read_reports(done.stdout), done.stdout + done.stderr


@functools.cache
def _workers():
    results = run_ranks(WORKERS / "workers.py", 2, "collective", timeout_s=200)
    return [(read_reports(result.output), result.output) for result in results]


def replicas(name):
    return told(name, *_replicas())


def workers(name):
    first, second = (told(name, *each) for each in _workers())
    assert first == second
    return first


@pytest.mark.parametrize("mode", ["inf_nan", "saturation"])
@pytest.mark.parametrize("kind", ["wrapper", "mixin"])
def test_fit_decides_once_for_all(kind, mode):
    report = replicas(f"fit_{kind}_{mode}")
    steps = report["steps"]
    assert [step["applied"] for step in steps] == [True, False, False, False, True]
    assert [step["scale"] for step in steps] == [8.0, 8.0, 4.0, 4.0, 4.0]
    assert [step["iterations"] for step in steps] == [1, 1, 1, 1, 2]
    assert all(step["finite"] for step in steps)
    assert len({step["weights"] for step in steps[:-1]}) == 1
    assert steps[-1]["weights"] != steps[0]["weights"]
    assert len(set(report["replicas"])) == 1
    assert [event[:3] for event in report["events"]] == SKIPPED_AND_EVENTS
    assert all(path.endswith("kernel") for *_, path in report["events"])


def test_custom_loop():
    report = replicas("custom_loop")
    weights = [weights for weights, _ in report["steps"]]
    assert all(first == second for first, second in weights)
    assert [w for w, _ in weights] == pytest.approx([0.7, 0.7, 0.7, 0.7, 0.5])
    assert [scale for _, scale in report["steps"]] == [8.0, 8.0, 4.0, 4.0, 4.0]
    assert report["events"] == [[*event, "v"] for event in SKIPPED_AND_EVENTS]


def test_clipping_sees_the_aggregate():
    assert replicas("clipping_sees_the_sum") == {"global_clipnorm": -1.0, "clipnorm": -1.0}


def test_overflow_made_by_the_sum_is_not_applied():
    report = replicas("finite_gradients_with_an_infinite_sum")
    assert report == {"weight": 1.0, "events": [[1, "skip", None, "v"]]}


def test_an_optimizer_made_of_others_adds_up_once():
    report = replicas("made_of_others")
    assert report
    for name, weights in report.items():  # 1 - 0.1 * (1 + 2) - 0.1 * (2 + 2), and a tenth of that
        assert weights == pytest.approx([0.3, 0.93], rel=1e-5), name


@pytest.mark.parametrize("kind", ["wrapper", "mixin", "without loss scaling"])
def test_gradient_accumulation(kind):
    report = replicas("accumulation")
    slowly, at_once = report[f"{kind}: k steps"], report[f"{kind}: one step"]
    assert slowly[1] == at_once[1] == 2
    assert slowly[0] == pytest.approx(at_once[0], rel=1e-6)
    assert at_once[0] == pytest.approx(-0.2, abs=1e-3)


def test_gradient_accumulation_in_fit():
    slowly, at_once = replicas("accumulation_in_fit")
    assert slowly[-1] == at_once[-1] == 4
    assert slowly == pytest.approx(at_once, rel=1e-5)


def test_moving_average_and_schedule():
    report = replicas("averages_and_schedules")
    assert report["strategy"] == pytest.approx(report["alone"], rel=1e-6)
    assert report["strategy"][1] == pytest.approx(0.0125), "three steps were applied"


@pytest.mark.parametrize("replica", ["replica 0", "replica 1"])
def test_statistics_and_mean_loss_are_protected(replica):
    report = replicas("protected")[replica]
    assert report["skipped"] == 1
    assert report["apart"] == 0.0, "as if the batch had not been there"
    loss, expected = report["loss"]
    assert loss == pytest.approx(expected, rel=1e-6)


def test_state_reads_as_numbers():
    report = replicas("reading_state")
    assert report["inside"] == [8.0, 8.0]
    assert report["before"] == [8.0, 0]
    assert report["after"] == [4.0, 2]
    assert report["finite"] is False
    assert report["snapshot"] == [4.0, 2]
    assert report["array"] == 4.0
    assert report["overflows"] == [2]


def test_model_file():
    report = replicas("saved_and_loaded")
    assert len(set(report["state"])) == 1
    assert report["skipped"] == 1
    assert report["apart"] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_xla_is_refused():
    message = replicas("compiled_by_xla")
    assert message.startswith("RuntimeError: A training step under a strategy")
    assert "jit_compile=False" in message


def test_step_outside_of_a_replica():
    message = replicas("outside_of_a_replica")
    assert message.startswith("ValueError")
    assert "strategy.run" in message


def test_rows():
    report = replicas("rows")
    before, after = report["steps"]
    assert before == after
    assert before[0] == before[2] == [1.0, 1.0]
    assert before[1] == before[3] == pytest.approx([0.7, 0.7])
    assert report["events"] == [[2, "skip", 1, "v"]]


def test_sharding_needs_ranks():
    message = replicas("sharding")
    assert message.startswith("ValueError: `is_weight_update_sharding=True`")
    assert "python -m npu_keras run" in message


def test_loop_over_two_workers():
    report = workers("custom_loop")
    assert [w for w, _ in report["steps"]] == pytest.approx([-0.3, -0.3, -0.3, -0.3, -0.5])
    assert [scale for _, scale in report["steps"]] == [8.0, 8.0, 4.0, 4.0, 4.0]
    assert report["events"] == [[*event, "v"] for event in SKIPPED_AND_EVENTS]


def test_clipping_over_two_workers():
    assert workers("clipping_sees_the_sum") == -1.0


def test_fit_over_two_workers_names_what_works():
    """Should Keras' own `fit` work one day, the warning can go."""
    (warning,) = workers("custom_loop")["said"]
    assert "'collective' engine" in warning
    assert "PerReplica" in workers("fit")
