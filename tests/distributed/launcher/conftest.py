# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[3])
HEADER = """
import os, signal, subprocess, sys, time
from npu_keras import cluster
here = cluster.find()
rank, size = here.rank, here.size
"""


@pytest.fixture(params=["mpi", "collective"])
def engine(request):
    from npu_keras import launch_plan

    if request.param == "mpi" and launch_plan.default_engine() != "mpi":
        pytest.skip("mpi4py or mpiexec is missing")
    return request.param


class Workspace:
    """A folder with a script, and a mark in the environment of all that is started from it."""

    def __init__(self, folder):
        self.folder = folder
        self.header = HEADER
        self.mark = f"NPU_KERAS_TEST={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        path = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
        # The scripts have no need of TensorFlow, which `import npu_keras` would load.
        self.env = {**os.environ, name: value, "PYTHONPATH": path, "NPU_KERAS_LAZY": "1"}

    def start(self, code, *options, args=()):
        (self.folder / "script.py").write_text(HEADER + code)
        command = [sys.executable, "-m", "npu_keras", "run", *options, "script.py", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=self.folder, env=self.env, text=True, **pipes)

    def run(self, code, *options, args=(), timeout=50):
        process = self.start(code, *options, args=args)
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output

    def living(self):
        """Processes that carry the mark, whatever group or session they moved to."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def living_after(self, seconds):
        deadline = time.monotonic() + seconds
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.living()

    @staticmethod
    def read_until_ready(process, size=2):
        lines = []
        while sum("ready" in line for line in lines) < size:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        return lines


@pytest.fixture
def space(tmp_path):
    workspace = Workspace(tmp_path)
    yield workspace
    assert workspace.living_after(3.0) == []
