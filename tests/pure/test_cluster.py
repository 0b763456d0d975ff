# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys

import pytest

from npu_keras.cluster import Cluster, find, step_limit

HOSTS = ["a:1000", "b:1000", "b:1001"]


def tf_config(role="worker", index=0, **cluster):
    cluster = cluster or {"worker": HOSTS}
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


def hydra(rank, size, local=None):
    env = {"PMI_RANK": str(rank), "PMI_SIZE": str(size)}
    return env if local is None else {**env, "MPI_LOCALRANKID": str(local)}


def open_mpi(rank, size, local):
    name = "OMPI_COMM_WORLD_"
    return {f"{name}RANK": str(rank), f"{name}SIZE": str(size), f"{name}LOCAL_RANK": str(local)}


def slurm(rank, size, local, nodes=1):
    """What a task of `srun` sees."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": str(nodes),
    }


SALLOC_SHELL = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
BATCH_SCRIPT = {**SALLOC_SHELL, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SINGLE = Cluster(0, 1, 0, "single", ())
W = tuple(HOSTS)

FOUND = {
    "nothing": ({}, SINGLE),
    "hydra": (hydra(3, 4, 1), Cluster(3, 4, 1, "mpi")),
    "hydra without a local rank": (hydra(3, 4), Cluster(3, 4, 3, "mpi")),
    "open mpi": (open_mpi(2, 4, 0), Cluster(2, 4, 0, "mpi")),
    "mpi of one": (hydra(0, 1, 0), SINGLE),
    "srun with pmi2": ({**slurm(3, 4, 1, 2), **hydra(3, 4)}, Cluster(3, 4, 1, "mpi")),
    "tf_config": ({"TF_CONFIG": tf_config()}, Cluster(0, 3, 0, "tf_config", W)),
    "tf_config, second of a host": (
        {"TF_CONFIG": tf_config(index=2)},
        Cluster(2, 3, 1, "tf_config", W),
    ),
    "tf_config, index as text": (
        {"TF_CONFIG": tf_config(index="1")},
        Cluster(1, 3, 0, "tf_config", W),
    ),
    "tf_config, chief": (
        {"TF_CONFIG": tf_config("chief", worker=HOSTS[1:], chief=HOSTS[:1])},
        Cluster(0, 3, 0, "tf_config", W),
    ),
    "tf_config, worker beside a chief": (
        {"TF_CONFIG": tf_config("worker", 1, worker=HOSTS[1:], chief=HOSTS[:1])},
        Cluster(2, 3, 1, "tf_config", W),
    ),
    "tf_config, evaluator elsewhere": (
        {"TF_CONFIG": tf_config("worker", 1, worker=HOSTS, evaluator=["c:1"])},
        Cluster(1, 3, 0, "tf_config", W),
    ),
    "tf_config of one": ({"TF_CONFIG": tf_config(worker=["a:1"])}, SINGLE),
    "tf_config, empty": ({"TF_CONFIG": ""}, SINGLE),
    "tf_config, no cluster": ({"TF_CONFIG": "{}"}, SINGLE),
    "slurm": (slurm(5, 8, 1, 4), Cluster(5, 8, 1, "slurm")),
    "slurm by hand": (
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"},
        Cluster(1, 2, 0, "slurm"),
    ),
    "slurm, shell of salloc": (SALLOC_SHELL, SINGLE),
    "slurm, batch script": (BATCH_SCRIPT, SINGLE),
    "slurm, step of one task in a job of 4": (
        {**slurm(0, 1, 0), "SLURM_NTASKS": "4"},
        SINGLE,
    ),
    "mpiexec in a batch script": ({**BATCH_SCRIPT, **hydra(2, 4, 0)}, Cluster(2, 4, 0, "mpi")),
    "mpiexec in an interactive step": (
        {**slurm(0, 1, 0), **hydra(1, 2, 1)},
        Cluster(1, 2, 1, "mpi"),
    ),
    "mpiexec over srun, one daemon per node": (
        {**slurm(1, 2, 0, 2), **hydra(3, 4, 1)},
        Cluster(3, 4, 1, "mpi"),
    ),
    "ascend": ({"RANK_ID": "9", "RANK_SIZE": "16"}, Cluster(9, 16, 9, "ascend")),
    "ascend, device": (
        {"RANK_ID": "9", "RANK_SIZE": "16", "ASCEND_DEVICE_ID": "1", "DEVICE_ID": "5"},
        Cluster(9, 16, 1, "ascend"),
    ),
    "ascend, old device variable": (
        {"RANK_ID": "9", "RANK_SIZE": "16", "DEVICE_ID": "5"},
        Cluster(9, 16, 5, "ascend"),
    ),
    "ascend, no rank table": (
        {"RANK_ID": "1", "CM_WORKER_SIZE": "2"},
        Cluster(1, 2, 1, "ascend"),
    ),
    "ascend of one": ({"RANK_SIZE": "1"}, SINGLE),
    "ascend, 0 workers": ({"CM_WORKER_SIZE": "0"}, SINGLE),
    "ascend, rank only": ({"RANK_ID": "0"}, SINGLE),
    "mpi and ascend's rank only": (
        {"RANK_ID": "1", **hydra(1, 2, 1)},
        Cluster(1, 2, 1, "mpi"),
    ),
    "mpi and ascend's size only": (
        {"CM_WORKER_SIZE": "2", **hydra(1, 2, 1)},
        Cluster(1, 2, 1, "mpi"),
    ),
    "all agree": (
        {
            **hydra(2, 3, 2),
            **slurm(2, 3, 0, 1),
            "TF_CONFIG": tf_config(index=2),
            "RANK_ID": "2",
            "RANK_SIZE": "3",
        },
        Cluster(2, 3, 2, "mpi", W),
    ),
    "tf_config before slurm": (
        {**slurm(1, 3, 0, 3), "TF_CONFIG": tf_config(index=1)},
        Cluster(1, 3, 0, "tf_config", W),
    ),
    "slurm before ascend": (
        {**slurm(1, 3, 0, 3), "RANK_ID": "1", "RANK_SIZE": "3"},
        Cluster(1, 3, 0, "slurm"),
    ),
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("env, expected", FOUND.values(), ids=FOUND)
def test_rank_and_size_are_found(env, expected):
    assert find(env) == expected


CONTRADICTIONS = {
    "hydra and open mpi": (
        {**hydra(0, 2, 0), **open_mpi(1, 2, 1)},
        ["PMI_RANK='0'", "OMPI_COMM_WORLD_RANK='1'"],
    ),
    "mpi and tf_config, rank": (
        {**hydra(0, 3, 0), "TF_CONFIG": tf_config(index=1)},
        ["PMI_RANK='0'", "TF_CONFIG with task worker 1, rank 1 of 3"],
    ),
    "mpi and slurm, size": (
        {**hydra(0, 2, 0), **slurm(0, 4, 0, 2)},
        ["PMI_SIZE='2'", "SLURM_STEP_NUM_TASKS='4'"],
    ),
    "mpi and ascend, size": (
        {**hydra(1, 2, 1), "RANK_ID": "1", "RANK_SIZE": "8"},
        ["PMI_SIZE='2'", "RANK_SIZE='8'", "(mpi)", "(ascend)"],
    ),
    "mpi and ascend of one": ({**hydra(1, 2, 1), "RANK_SIZE": "1"}, ["PMI_SIZE='2'", "RANK_SIZE"]),
    "mpi and ascend's rank only": (
        {**hydra(1, 2, 1), "RANK_ID": "0"},
        ["PMI_RANK='1'", "RANK_ID='0'"],
    ),
    "mpi and ascend without a table": (
        {**hydra(1, 2, 1), "CM_WORKER_SIZE": "4"},
        ["PMI_SIZE='2'", "CM_WORKER_SIZE='4'"],
    ),
    "tf_config and slurm": (
        {**slurm(1, 3, 0), "TF_CONFIG": tf_config(index=2)},
        ["TF_CONFIG", "rank 2 of 3", "SLURM_PROCID='1'"],
    ),
    "tf_config and ascend": (
        {"TF_CONFIG": tf_config(index=2), "RANK_ID": "2", "RANK_SIZE": "4"},
        ["TF_CONFIG", "RANK_SIZE='4'"],
    ),
    "slurm and ascend": (
        {**slurm(1, 2, 0), "RANK_ID": "0", "RANK_SIZE": "2"},
        ["SLURM_PROCID='1'", "RANK_ID='0'"],
    ),
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("env, parts", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_name_both_sides_and_the_way_out(env, parts):
    with pytest.raises(ValueError, match="Unset the one that did not start") as caught:
        find(env)
    assert [part for part in parts if part not in str(caught.value)] == []


MALFORMED = {
    "rank is text": ({"PMI_RANK": "one", "PMI_SIZE": "2"}, "PMI_RANK='one'"),
    "rank is negative": ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, "PMI_RANK='-1'"),
    "rank beyond size": (hydra(2, 2), "Received: PMI_RANK='2', PMI_SIZE='2'"),
    "size without rank": ({"PMI_SIZE": "2"}, "only PMI_SIZE='2'"),
    "rank without size": ({"OMPI_COMM_WORLD_RANK": "0"}, "only OMPI_COMM_WORLD_RANK='0'"),
    "slurm rank beyond size": (slurm(4, 4, 0), "SLURM_PROCID='4'"),
    "both ascend sizes": (
        {"RANK_SIZE": "2", "CM_WORKER_SIZE": "2", "RANK_ID": "0"},
        "RANK_SIZE='2', CM_WORKER_SIZE='2'. Unset one",
    ),
    "ascend size empty": ({"RANK_SIZE": ""}, "RANK_SIZE=''. Set it to a number, or unset it"),
    "ascend size is text": ({"RANK_SIZE": "2x", "RANK_ID": "0"}, "RANK_SIZE='2x'"),
    "ascend size in other digits": ({"RANK_SIZE": "²", "RANK_ID": "0"}, "RANK_SIZE='²'"),
    "ascend size 0": ({"RANK_SIZE": "0"}, "RANK_SIZE='0'"),
    "ascend without rank": ({"RANK_SIZE": "2"}, "RANK_SIZE='2', and RANK_ID is not set"),
    "ascend workers without rank": ({"CM_WORKER_SIZE": "2"}, "CM_WORKER_SIZE='2', and RANK_ID"),
    "ascend rank without size": ({"RANK_ID": "3"}, "RANK_ID='3', RANK_SIZE not set"),
    "ascend, too many workers": (
        {"CM_WORKER_SIZE": "32769", "RANK_ID": "0"},
        "from 0 to 32768. Received: CM_WORKER_SIZE='32769'",
    ),
    "not json": ({"TF_CONFIG": "{'cluster'"}, "to be JSON"),
    "json, no object": ({"TF_CONFIG": "[1]"}, "to be JSON"),
    "addresses are text": ({"TF_CONFIG": tf_config(worker="a:1")}, "not 'a:1'"),
    "index is a fraction": ({"TF_CONFIG": tf_config(index=0.5)}, "'0.5'"),
    "task index beyond": ({"TF_CONFIG": tf_config(index=3)}, "type 'worker', index 3"),
    "task index negative": ({"TF_CONFIG": tf_config(index=-1)}, "index -1"),
    "no such task": ({"TF_CONFIG": tf_config("chief")}, "type 'chief'"),
    "no task": ({"TF_CONFIG": json.dumps({"cluster": {"worker": HOSTS}})}, "type 'None'"),
    "evaluator": ({"TF_CONFIG": tf_config("evaluator")}, "evaluation without TF_CONFIG"),
    "parameter server": (
        {"TF_CONFIG": tf_config("worker", worker=HOSTS, ps=["c:1"])},
        "without parameter servers. Received: ['ps']",
    ),
    "parameter server task": ({"TF_CONFIG": tf_config("ps", ps=["c:1"])}, "['ps']"),
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("env, part", MALFORMED.values(), ids=MALFORMED)
def test_malformed_environments_are_errors(env, part):
    with pytest.raises(ValueError, match="Received: ") as caught:
        find(env)
    assert part in str(caught.value)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("env, limit", [({}, None), ({"NPU_KERAS_STEPS": "12"}, 12)])
def test_step_limit_is_read(env, limit):
    assert step_limit(env) == limit


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_step_limit_must_be_positive(text):
    with pytest.raises(ValueError, match="NPU_KERAS_STEPS"):
        step_limit({"NPU_KERAS_STEPS": text})


@pytest.mark.timeout(10)
def test_default_is_the_environment_of_the_process(monkeypatch):
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    assert find() == Cluster(1, 2, 1, "ascend")


@pytest.mark.timeout(60)
def test_neither_tensorflow_nor_keras_is_imported():
    code = "import sys, npu_keras.cluster; print({'tensorflow', 'keras'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NPU_KERAS_LAZY": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"
