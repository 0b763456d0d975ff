# SPDX-License-Identifier: Apache-2.0
"""Starts a script as several real ranks on this machine, and leaves no process behind.

A test says `from launch import run_ranks`, and gives the source of a worker or its path:

    for result in run_ranks("from npu_keras import engines\\nprint(engines.find().rank)", 2, "mpi"):
        assert result.returncode == 0, result.output
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[2]
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
_RANK_VARIABLES = ("TF_CONFIG", "RANK_ID", "RANK_SIZE")
# The shell keeps the exit status of the rank, which mpiexec does not tell.
_SHELL = """
"$0" -u "$@" >out.$RANK 2>&1 </dev/null
status=$?
echo $status >status.$RANK
exit $status
"""
_MARK = "NPU_KERAS_TEST_RUN"


class RankResult(NamedTuple):
    """What became of one rank: `returncode` as a shell gives it (137: SIGKILL)."""

    rank: int
    returncode: int
    output: str


def run_ranks(
    script: str | Path,
    n: int,
    engine: Literal["mpi", "collective"],
    *args: str,
    timeout_s: float = 120,
    env: dict[str, str] | None = None,
) -> list[RankResult]:
    """Runs `script` as `n` ranks; returns what each wrote (both streams) and its exit status.

    Args:
        script: source text of the worker (more than one line), or the path of a script.
        n: int, number of ranks.
        engine: `"mpi"` starts them under `mpiexec`, which lets the others live when one dies;
            `"collective"` with a `TF_CONFIG` of free ports of 127.0.0.1.
        args: command-line arguments of the worker.
        timeout_s: float, seconds until all are killed and an AssertionError shows what they wrote.
        env: more environment variables.
    """
    mark = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    base = {k: v for k, v in os.environ.items() if k not in _RANK_VARIABLES}
    path = os.pathsep.join(filter(None, [str(ROOT), base.get("PYTHONPATH")]))
    base |= _QUIET | {"PYTHONPATH": path, _MARK: mark} | (env or {})
    processes: list[subprocess.Popen[bytes]] = []
    try:
        command = [sys.executable, str(_as_file(script, folder)), *args]
        start = _start_mpi if engine == "mpi" else _start_collective
        processes += start(command, n, folder, base)
        ended = _wait(processes, timeout_s)
        results = [_result(folder, rank) for rank in range(n)]
    finally:
        _kill_marked(mark)
        for process in processes:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    shown = "\n".join(f"--- rank {r.rank}: {r.returncode}\n{r.output[-4000:]}" for r in results)
    assert ended, f"still running after {timeout_s} s\n{shown}"
    return results


def free_ports(n: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _as_file(script: str | Path, folder: Path) -> Path:
    if isinstance(script, Path) or "\n" not in script:
        return Path(script).resolve()
    path = folder / "worker.py"
    path.write_text(script)
    return path


def _start_mpi(
    command: list[str], n: int, folder: Path, env: dict[str, str]
) -> list[subprocess.Popen[bytes]]:
    mpiexec = shutil.which("mpiexec", path=Path(sys.executable).parent) or "mpiexec"
    shell = ["sh", "-c", "trap '' USR1; RANK=$PMI_RANK; " + _SHELL, *command]
    # Without its cleanup hydra tells the living of a death by SIGUSR1, which MPICH handles.
    line = [mpiexec, "-disable-auto-cleanup", "-n", str(n), *shell]
    return [subprocess.Popen(line, cwd=folder, env=env, stderr=subprocess.DEVNULL)]


def _start_collective(
    command: list[str], n: int, folder: Path, env: dict[str, str]
) -> list[subprocess.Popen[bytes]]:
    workers = [f"127.0.0.1:{port}" for port in free_ports(n)]
    processes = []
    for rank in range(n):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        own = {**env, "TF_CONFIG": json.dumps(config), "RANK": str(rank)}
        processes.append(subprocess.Popen(["sh", "-c", _SHELL, *command], cwd=folder, env=own))
    return processes


def _wait(processes: list[subprocess.Popen[bytes]], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
    return True


def _result(folder: Path, rank: int) -> RankResult:
    status, output = folder / f"status.{rank}", folder / f"out.{rank}"
    code = int(status.read_text()) if status.exists() else 137
    text = output.read_text(errors="replace") if output.exists() else ""
    return RankResult(rank, code, text)


def _kill_marked(mark: str) -> None:
    """Kills what the run has started, whatever group or session it moved to."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
