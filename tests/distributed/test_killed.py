# SPDX-License-Identifier: Apache-2.0
"""A rank is killed in the middle of `fit`: the other says so, and its last checkpoint is whole."""

import re
from pathlib import Path

import pytest
from launch import run_ranks

WORKER = Path(__file__).with_name("killed_worker.py")


@pytest.mark.distributed
@pytest.mark.timeout(200)
@pytest.mark.parametrize("engine", ["mpi", "collective"])
def test_the_survivor_names_the_dead_rank_and_the_last_checkpoint_loads(engine, tmp_path):
    survivor, killed = run_ranks(WORKER, 2, engine, str(tmp_path), timeout_s=180)
    assert killed.returncode == 137, killed.output
    assert survivor.returncode == 0, survivor.output
    error = re.search(r"^error (.*)$", survivor.output, re.M)[1]
    assert re.search(r"[Rr]ank 1", error), error
    # Two steps an epoch: the fifth belongs to the third, so that two epochs are in the file.
    loaded = re.search(r"^loaded (\d+) (\S+)$", survivor.output, re.M)
    assert (int(loaded[1]), float(loaded[2])) == (4, 16.0)
