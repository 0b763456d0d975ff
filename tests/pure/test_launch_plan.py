# SPDX-License-Identifier: Apache-2.0
import json
import os
import socket
import sys

import pytest

from npu_keras import cluster, launch_plan

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize("size, threads", [(1, "6"), (2, "3"), (4, "1"), (16, "1")])
def test_ranks_share_the_cores(monkeypatch, size, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    env = launch_plan.rank_environment({}, size)
    assert (env["OMP_NUM_THREADS"], env["TF_NUM_INTRAOP_THREADS"]) == (threads, threads)


def test_threads_that_are_set_stay():
    given = {"OMP_NUM_THREADS": "7", "TF_NUM_INTRAOP_THREADS": "8", "HOME": "/h"}
    assert given.items() <= launch_plan.rank_environment(given, 2).items()


def test_no_variable_names_a_rank():
    env = dict.fromkeys(cluster.VARIABLES, "0") | {"SLURM_STEP_NUM_TASKS": "1"}
    assert cluster.find(launch_plan.rank_environment(env, 2)).size == 1
    assert not set(cluster.VARIABLES) & set(launch_plan.rank_environment(env, 2))


def test_steps_reach_the_ranks():
    assert cluster.step_limit(launch_plan.rank_environment({}, 2, steps=30)) == 30
    assert cluster.step_limit(launch_plan.rank_environment({}, 2)) is None


def test_free_addresses_differ_and_are_taken_until_the_end():
    with launch_plan.free_addresses(5) as addresses:
        assert len(set(addresses)) == 5
        host, _, port = addresses[0].rpartition(":")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
    with socket.socket() as other:
        other.bind((host, int(port)))


def test_commands_with_tf_config_name_every_host():
    lines = launch_plan.host_commands(["a", "b:7000"], 4, ["python", "my script.py"])
    assert lines[::2] == ["# on a, rank 0", "# on a, rank 1", "# on b, rank 2", "# on b, rank 3"]
    head, _, tail = lines[5].partition("'")
    config, _, command = tail.partition("' ")
    assert head == "TF_CONFIG="
    assert command == "python 'my script.py'"
    assert json.loads(config) == {
        "cluster": {"worker": ["a:29500", "a:29501", "b:7000", "b:7001"]},
        "task": {"type": "worker", "index": 2},
    }


def test_command_with_mpiexec_is_one_line():
    lines = launch_plan.host_commands(["a", "b"], None, ["python", "s.py"], "/bin/mpiexec", 10)
    assert lines == [
        "# once, on any of the hosts",
        "NPU_KERAS_STEPS=10 /bin/mpiexec -hosts a,b -ppn 1 -n 2 python s.py",
    ]


@pytest.mark.parametrize("hosts", [["a", ""], ["a:x"], [":1"]])
def test_malformed_hosts(hosts):
    with pytest.raises(ValueError, match="Expected hosts as names"):
        launch_plan.host_commands(hosts, None, ["python", "s.py"])


def test_ports_are_not_for_mpi():
    with pytest.raises(ValueError, match="Leave the ports out"):
        launch_plan.host_commands(["a:1"], None, ["python", "s.py"], "/bin/mpiexec")


def test_mpiexec_beside_python_comes_first(monkeypatch, tmp_path):
    for name in ("beside", "path"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(ValueError, match="pip install 'npu-keras"):
        launch_plan.find_mpiexec()
    for name in ("path", "beside"):
        mpiexec = tmp_path / name / "mpiexec"
        mpiexec.touch(0o755)
        assert launch_plan.find_mpiexec() == str(mpiexec)


def test_engine_without_mpi4py_is_collective(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert launch_plan.default_engine() == "collective"


def test_script_must_exist(tmp_path):
    with pytest.raises(ValueError, match="put -m before its name"):
        launch_plan.script_command(str(tmp_path / "none.py"), [])
    assert launch_plan.script_command("pkg", ["--x"], module=True)[1:] == ["-m", "pkg", "--x"]
