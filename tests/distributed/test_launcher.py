# SPDX-License-Identifier: Apache-2.0
"""The launcher with real processes. The scripts are tiny and mostly without TensorFlow."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from npu_keras import launch_plan

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(60)]

ROOT = str(Path(__file__).parents[2])
MPI = pytest.param(
    "mpi",
    marks=pytest.mark.skipif(launch_plan.default_engine() != "mpi", reason="no MPI is installed"),
)
ENGINES = pytest.mark.parametrize("engine", [MPI, "collective"])

HEADER = """
import os, signal, subprocess, sys, time
from npu_keras import cluster
here = cluster.find()
rank, size = here.rank, here.size
"""
WAIT = "print('ready'); time.sleep(50)"


class Workspace:
    """A folder with a script, and a mark in the environment of all that is started from it."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = f"NPU_KERAS_TEST={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        path = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.env = {**os.environ, name: value, "PYTHONPATH": path}

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


@pytest.fixture
def space(tmp_path):
    workspace = Workspace(tmp_path)
    yield workspace
    assert workspace.living_after(3.0) == []


def read_until_ready(process, size=2):
    lines = []
    while sum("ready" in line for line in lines) < size:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    return lines


@ENGINES
def test_every_rank_runs_once_and_its_lines_are_marked(space, engine):
    code = """
print("out", rank, size, here.local_rank, here.source, *sys.argv[1:])
print("err", file=sys.stderr)
sys.stdout.write("no newline")
"""
    status, output = space.run(code, "-n", "3", "--engine", engine, args=["-n", "a b", "--steps"])
    source = {"mpi": "mpi", "collective": "tf_config"}[engine]
    expected = [
        line
        for r in range(3)
        for line in (f"[{r}] out {r} 3 {r} {source} -n a b --steps", f"[{r}] err")
    ]
    lines = output.splitlines()
    assert status == 0
    assert sorted(lines) == sorted(expected + [f"[{r}] no newline" for r in range(3)])
    assert lines.index("[1] err") == lines.index(f"[1] out 1 3 1 {source} -n a b --steps") + 1


@ENGINES
def test_lines_of_busy_ranks_stay_whole(space, engine):
    code = "for i in range(3000): print(rank, i, 'x' * 150, file=[sys.stdout, sys.stderr][i % 2])"
    status, output = space.run(code, "-n", "2", "--engine", engine)
    lines = output.splitlines()
    assert status == 0
    for r in range(2):
        own = [line for line in lines if line.startswith(f"[{r}]")]
        assert own == [f"[{r}] {r} {i} " + "x" * 150 for i in range(3000)]
    assert len(lines) == 6000


@ENGINES
def test_others_may_report_when_a_rank_fails_and_its_status_is_returned(space, engine):
    code = """
if rank == 1:
    sys.exit(7)
time.sleep(0.7)
sys.exit(f"rank {rank} misses rank 1")
"""
    status, output = space.run(code, "-n", "3", "--engine", engine)
    assert status == 7
    assert "rank 1 ended with exit status 7; ranks [0, 2] have 15 s to end" in output
    assert "[0] rank 0 misses rank 1" in output
    assert "[2] rank 2 misses rank 1" in output
    assert "SIGTERM" not in output


@ENGINES
def test_a_killed_rank_is_named_and_the_others_are_ended(space, engine):
    code = """
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.run(["sleep", "50"])
"""
    begin = time.monotonic()
    status, output = space.run(code, "-n", "2", "--engine", engine, "--grace", "0.5")
    assert status == 128 + 9
    assert "rank 0 died by signal 9 (SIGKILL); ranks [1] have 0.5 s to end" in output
    assert "sending SIGTERM to ranks [1]" in output
    assert "rank 1 died by signal 15 (SIGTERM)" in output
    assert time.monotonic() - begin < 15


def test_a_rank_that_ignores_sigterm_is_killed(space):
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(3) if rank else time.sleep(50)
"""
    status, output = space.run(code, "-n", "2", "--engine", "collective", "--grace", "0.5")
    assert status == 3
    assert "sending SIGKILL to ranks [0]" in output
    assert "rank 0 died by signal 9 (SIGKILL)" in output


@ENGINES
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_forwarded_and_may_be_handled(space, engine, number):
    code = """
def end(number, frame):
    print("got", number)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
"""
    with space.start(code + WAIT, "-n", "2", "--engine", engine) as process:
        read_until_ready(process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"[0] got {int(number)}" in output
    assert f"[1] got {int(number)}" in output


def test_signals_that_are_not_handled_give_their_status(space):
    with space.start(WAIT, "-n", "2", "--engine", "collective") as process:
        read_until_ready(process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + 15
    assert "died by signal 15 (SIGTERM)" in output


@ENGINES
def test_nothing_is_left_when_the_launcher_is_killed(space, engine):
    code = "child = subprocess.Popen(['sleep', '50'])\n" + WAIT
    with space.start(code, "-n", "2", "--engine", engine) as process:
        read_until_ready(process)
        assert sum("sleep 50" in command for command in space.living()) == 2
        process.kill()
    assert space.living_after(10.0) == []


@ENGINES
def test_what_a_rank_left_behind_ends_with_it(space, engine):
    code = "subprocess.Popen(['sleep', '50'])"
    begin = time.monotonic()
    status, _ = space.run(code, "-n", "2", "--engine", engine)
    assert status == 0
    assert time.monotonic() - begin < 15


@ENGINES
def test_time_limit(space, engine):
    status, output = space.run(WAIT, "-n", "2", "--engine", engine, "--timeout", "2")
    assert status == 124
    assert "time limit is over" in output


@ENGINES
def test_nothing_is_left_when_the_reader_of_the_output_is_gone(space, engine):
    code = "print('first')\nwhile True: print('more'); time.sleep(0.01)"
    with space.start(code, "-n", "2", "--engine", engine) as process:
        assert "first" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=20) == 128 + 13


def test_environment_of_the_ranks(space):
    code = "print(os.environ['OMP_NUM_THREADS'], os.environ['TF_NUM_INTRAOP_THREADS'], end=' ')"
    code += "\nprint(cluster.step_limit(), os.environ.get('RANK_SIZE'))"
    space.env |= {"OMP_NUM_THREADS": "5", "RANK_SIZE": "1"}
    status, output = space.run(code, "-n", "4", "--engine", "collective", "--steps", "9")
    threads = max(1, len(os.sched_getaffinity(0)) // 4)
    assert status == 0
    assert sorted(output.splitlines()) == [f"[{r}] 5 {threads} 9 None" for r in range(4)]


def test_ports_are_held_for_the_ranks(space):
    code = """
import socket
for share in (0, 1):
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, share)
        host, port = here.workers[rank].split(":")
        try:
            server.bind((host, int(port)))
            print("bound" if share else "stolen")
        except OSError as error:
            print(error.strerror)
"""
    status, output = space.run(code, "-n", "2", "--engine", "collective")
    expected = [f"[{r}] {text}" for r in range(2) for text in ("Address already in use", "bound")]
    assert status == 0
    assert sorted(output.splitlines()) == sorted(expected)


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.timeout(150)
def test_tensorflow_listens_on_a_held_port(space):
    code = """
import socket
import tensorflow as tf
spec = tf.train.ClusterSpec({"worker": ["127.0.0.1:" + sys.argv[1]]})
server = tf.distribute.Server(spec, "worker", 0, protocol="grpc")
socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()
print(server.target)
sys.stdout.flush()
os._exit(0)
"""
    space.env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    with launch_plan.free_addresses(1) as (address,):
        port = address.rpartition(":")[2]
        status, output = space.run(code, "--engine", "collective", args=[port], timeout=120)
    assert status == 0, output
    assert f"[0] grpc://127.0.0.1:{port}" in output.splitlines()


@pytest.mark.parametrize("engine", [MPI])
def test_ranks_start_on_this_machine_inside_a_slurm_allocation(space, engine):
    names = ("SLURM_NODELIST", "SLURM_JOB_NODELIST")
    space.env |= dict.fromkeys(names, "elsewhere") | {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}
    space.env |= {"SLURM_TASKS_PER_NODE": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    status, output = space.run("print(rank, size)", "-n", "2", "--engine", engine)
    assert status == 0
    assert sorted(output.splitlines()) == ["[0] 0 2", "[1] 1 2"]


@pytest.mark.parametrize("engine", [MPI])
def test_ranks_talk_over_mpi_and_an_abort_gives_its_code(space, engine):
    code = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print("sum", world.allreduce(world.rank + 1))
world.Barrier()
if world.rank == 1:
    world.Abort(5)
time.sleep(50)
"""
    status, output = space.run(code, "-n", "2", "--engine", engine, "--grace", "3")
    assert status == 5
    assert {"[0] sum 3", "[1] sum 3"} <= set(output.splitlines())


@ENGINES
def test_printed_commands_start_the_ranks(space, engine):
    options = ["-n", "2", "--engine", engine, "--hosts", "127.0.0.1", "--steps", "4"]
    status, output = space.run(
        "print(rank, size, cluster.step_limit(), sys.argv[1:])", *options, args=["a b"]
    )
    assert status == 0
    comments = [line for line in output.splitlines() if line.startswith("#")]
    commands = [line for line in output.splitlines() if not line.startswith("#")]
    printed = [
        subprocess.run(
            command, shell=True, cwd=space.folder, env=space.env, capture_output=True, text=True
        ).stdout
        for command in commands
    ]
    assert sorted("".join(printed).splitlines()) == ["0 2 4 ['a b']", "1 2 4 ['a b']"]
    assert len(comments) == len(commands) == {"mpi": 1, "collective": 2}[engine]


def test_a_module_is_run(space):
    (space.folder / "task.py").write_text(HEADER + "print(rank, __name__, sys.argv[1:])")
    command = "run -n 2 --engine collective -m task --fast"
    done = subprocess.run(
        [sys.executable, "-m", "npu_keras", *shlex.split(command)],
        cwd=space.folder,
        env=space.env,
        capture_output=True,
        text=True,
    )
    expected = [f"[{r}] {r} __main__ ['--fast']" for r in range(2)]
    assert sorted(done.stdout.splitlines()) == expected
    assert (done.returncode, done.stderr) == (0, "")


def test_ranks_that_cannot_start_are_an_error(space):
    fake = space.folder / "bin" / "mpiexec"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho no such host >&2\nexit 4\n")
    fake.chmod(0o755)
    code = (
        "import sys; from npu_keras import launch_plan, launcher; "
        f"launch_plan._mpiexec = lambda: {str(fake)!r}; sys.exit(launcher.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-n", "2", "--engine", "mpi", "-m", "this"],
        env=space.env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 4
    assert done.stderr == "npu_keras run: 0 of 2 ranks started. no such host\n"


@pytest.mark.parametrize(
    "env, options, text",
    [
        ({}, ["-n", "0"], "expected 1 or more, received 0"),
        ({}, ["-n", "2", "-m"], "required: script"),
        ({}, ["-n", "2", "none.py"], r"script='none\.py', which does not exist"),
        ({}, ["-n", "3", "--hosts", "a,b", "-m", "this"], "multiple of the number of hosts, 2"),
        ({"RANK_ID": "1", "RANK_SIZE": "2"}, ["-m", "this"], r"rank 1 of 2 \(ascend\)"),
        ({"RANK_SIZE": "two"}, ["-m", "this"], "RANK_SIZE='two'"),
    ],
)
def test_mistakes_on_the_command_line(space, env, options, text):
    done = subprocess.run(
        [sys.executable, "-m", "npu_keras", "run", *options],
        env={**space.env, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert re.search(text, done.stderr)
