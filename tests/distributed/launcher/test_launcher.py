# SPDX-License-Identifier: Apache-2.0
import os
import re
import shlex
import subprocess
import sys

import pytest

from npu_keras import launch_plan

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(60)]


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


def test_lines_of_busy_ranks_stay_whole(space, engine):
    code = "for i in range(3000): print(rank, i, 'x' * 150, file=[sys.stdout, sys.stderr][i % 2])"
    status, output = space.run(code, "-n", "2", "--engine", engine)
    lines = output.splitlines()
    assert status == 0
    for r in range(2):
        own = [line for line in lines if line.startswith(f"[{r}]")]
        assert own == [f"[{r}] {r} {i} " + "x" * 150 for i in range(3000)]
    assert len(lines) == 6000


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


def test_only_the_script_pays_for_tensorflow(space, engine):
    (space.folder / "plain.py").write_text(
        """
import os
from pathlib import Path
pid = os.getpid()
while b"npu_keras run" not in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\\0", b" "):
    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    print("tensorflow" in Path(f"/proc/{pid}/maps").read_text(), end=" ")
"""
    )
    del space.env["NPU_KERAS_LAZY"]
    done = subprocess.run(
        [sys.executable, "-m", "npu_keras", "run", "--engine", engine, "plain.py"],
        cwd=space.folder,
        env=space.env,
        capture_output=True,
        text=True,
    )
    # The process around the rank, those of mpiexec, the launcher.
    expected = {"mpi": "False False False False", "collective": "False False"}[engine]
    assert done.stdout == f"[0] {expected} \n"


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


@pytest.mark.parametrize("engine", ["mpi"], indirect=True)
def test_ranks_start_on_this_machine_inside_a_slurm_allocation(space, engine):
    names = ("SLURM_NODELIST", "SLURM_JOB_NODELIST")
    space.env |= dict.fromkeys(names, "elsewhere") | {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}
    space.env |= {"SLURM_TASKS_PER_NODE": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    status, output = space.run("print(rank, size)", "-n", "2", "--engine", engine)
    assert status == 0
    assert sorted(output.splitlines()) == ["[0] 0 2", "[1] 1 2"]


@pytest.mark.parametrize("engine", ["mpi"], indirect=True)
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


def test_printed_commands_start_the_ranks(space, engine):
    options = ["-n", "2", "--engine", engine, "--hosts", "127.0.0.1", "--steps", "4"]
    # In one write, or mpiexec may mix the pieces of two ranks.
    code = r'sys.stdout.write(f"{rank} {size} {cluster.step_limit()} {sys.argv[1:]}\n")'
    status, output = space.run(code, *options, args=["a b"])
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
    (space.folder / "task.py").write_text(space.header + "print(rank, __name__, sys.argv[1:])")
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
