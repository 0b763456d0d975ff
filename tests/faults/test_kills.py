# SPDX-License-Identifier: Apache-2.0
"""A training of two ranks that is killed again and again does what one does that is not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_two_kills_and_the_number_of_ranks_changed():
    options = ["--kills", "2", "--sizes", "2,1", "--places", "between steps,while saving"]
    command = [sys.executable, "-m", "tests.faults.kills", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    assert "with the scale, counters and weights of a training without a kill" in ended.stdout
