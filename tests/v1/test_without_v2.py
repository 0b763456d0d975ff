# SPDX-License-Identifier: Apache-2.0
"""The tests of graphs once more with `tf.compat.v1.disable_v2_behavior()`, in its own process.

Variables are reference variables there, and conditionals are made of switches.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from loops import WITHOUT_V2

HERE = Path(__file__).parent
TESTS = [
    "test_v1_ordering.py",
    "test_v1_steps.py",
    "test_v1_state.py",
    "test_v1_user_code.py",
    "test_v1_oracle.py::test_every_step_of_tensorflow_1[adam-16384-clip0.5-graph]",
    "test_v1_scripts.py::test_scripts_of_the_documentation[0-first_script]",
]


@pytest.mark.skipif(WITHOUT_V2, reason="is that process")
def test_without_the_behaviour_of_v2():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, *(str(HERE / test) for test in TESTS)],
        cwd=HERE.parents[1],
        env={**os.environ, "NPU_KERAS_TESTS_WITHOUT_V2": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
