# SPDX-License-Identifier: Apache-2.0
"""The demo on two processes, with real ones."""

import os
import re
import subprocess
import sys

import pytest
from launch import ROOT

from npu_keras.event_log import read_events

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]
EPOCHS = 6


def run(*command):
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *command], env=env, capture_output=True, text=True, timeout=280
    )


def test_both_ranks_skip_the_overflow_of_one_and_train_as_well_as_one_process(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    options = ["--output", str(tmp_path), "--epochs", str(EPOCHS)]
    done = run("npu_keras", "run", "-n", "2", "-m", "npu_keras.demo_distributed", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"process\w*, \w+ batches +(\d+) +(\d+) +(\S+) +(\S+)%$", done.stdout, re.M)
    assert [row[:2] for row in rows] == [(str(44 * EPOCHS), "1")] * 2, done.stdout
    together, alone = (float(row[3]) for row in rows)
    assert together > 90
    assert abs(together - alone) < 4
    hashes = re.findall(r"^\[0\]   rank \d  (\w{16})$", done.stdout, re.M)
    assert len(hashes) == 2
    assert hashes[0] == hashes[1]
    skips = r"^\[\d\] .*1 of 44 steps skipped \(100\).* on rank 1;"
    assert len(re.findall(skips, done.stdout, re.M)) == 1, done.stdout
    assert "[1] " not in re.sub(r"^\[1\] (WARNING|[EIW]0000).*\n", "", done.stdout, flags=re.M)
    events, _ = read_events(tmp_path / "distributed.jsonl")
    assert [(e.attempt, e.kind, e.rank) for e in events] == [
        (80, "grow", None),
        (100, "back off", 1),
        (180, "grow", None),
        (260, "grow", None),
    ]


def test_one_process_is_told_how_to_start_it():
    done = run("npu_keras.demo_distributed")
    assert done.returncode == 2
    assert "python -m npu_keras run -n 2 -m npu_keras.demo_distributed" in done.stderr
