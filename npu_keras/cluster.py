# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is, and of how many, read from the environment alone."""

import os
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from npu_keras import tf_config

Source = Literal["mpi", "tf_config", "slurm", "ascend", "single"]

_MPI_NAMES = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # hydra: MPICH, Intel MPI; also `srun --mpi=pmi2`
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
# Every variable that names a rank; a launcher removes them before it sets its own.
VARIABLES = (
    *(name for names in _MPI_NAMES for name in names),
    *("TF_CONFIG", "SLURM_PROCID", "SLURM_LOCALID", "RANK_ID", "RANK_SIZE", "CM_WORKER_SIZE"),
)
STEPS = "NPU_KERAS_STEPS"
_MAX_CM_WORKERS = 32768
_MOST_DIGITS = 18  # any number of them is an int64


class Cluster(NamedTuple):
    """Place of this process among the processes that train together.

    Args:
        rank: int, from 0 to `size - 1`.
        size: int, number of processes, at least 1.
        local_rank: int, number of this process on its host, or of its device.
            Where the source doesn't tell it, all processes are taken to run on one host.
        source: who said so: `"mpi"`, `"tf_config"`, `"slurm"`, `"ascend"`, or `"single"`
            when nobody speaks of more than one process.
        workers: `host:port` of every rank in rank order when `TF_CONFIG` lists them, else empty.
    """

    rank: int
    size: int
    local_rank: int
    source: Source
    workers: tuple[str, ...] = ()


class _Claim(NamedTuple):
    source: Source
    rank: int | None
    size: int
    local_rank: int | None
    names: str
    text: str
    workers: tuple[str, ...] = ()


def find(env: Mapping[str, str] | None = None) -> Cluster:
    """Finds the rank and the number of ranks.

    The sources, first one wins: MPI (`PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, or
    `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`), `TF_CONFIG`, Slurm (`SLURM_PROCID`,
    `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`), Ascend (`RANK_ID`, and `RANK_SIZE` or
    `CM_WORKER_SIZE`; CANN commercial documentation, "environment variables"). Sources may
    repeat each other, never contradict each other. The shell of a Slurm allocation, a step of
    one task, and the daemons that `mpiexec` starts by `srun` say nothing about ranks.

    Args:
        env: mapping of environment variables. Defaults to `os.environ`.

    Returns:
        A `Cluster`; `Cluster(0, 1, 0, "single")` when there is only one process.

    Raises:
        ValueError: if a variable is malformed, a rank is out of range, `RANK_SIZE` and
            `CM_WORKER_SIZE` are both set, or two sources disagree.

    Example:

    >>> find({"RANK_ID": "1", "RANK_SIZE": "2"})
    Cluster(rank=1, size=2, local_rank=1, source='ascend', workers=())
    """
    env = os.environ if env is None else env
    claims = [*_mpi(env), *_tf_config(env)]
    claims += _slurm(env, claims)
    claims += _ascend(env, claims)
    for claim in claims:
        _check_range(claim)
    for i, first in enumerate(claims):
        for second in claims[i + 1 :]:
            _check_agreement(first, second)
    if not claims or claims[0].size == 1:
        return Cluster(0, 1, 0, "single")
    best = next((claim for claim in claims if claim.rank is not None), None)
    if best is None or best.rank is None:
        raise ValueError(
            f"Expected a rank for each of {claims[0].size} processes. Received: "
            f"{claims[0].text}, and RANK_ID is not set. Set RANK_ID to this process's rank, "
            f"0 to {claims[0].size - 1}."
        )
    local_rank = best.rank if best.local_rank is None else best.local_rank
    workers = next((claim.workers for claim in claims if claim.workers), ())
    return Cluster(best.rank, best.size, local_rank, best.source, workers)


def step_limit(env: Mapping[str, str] | None = None) -> int | None:
    """Reads after how many steps every rank stops: `NPU_KERAS_STEPS`, set by `run --steps`.

    Args:
        env: mapping of environment variables. Defaults to `os.environ`.

    Returns:
        A number of steps, at least 1, or `None` if no limit was given.

    Raises:
        ValueError: if it is not a whole number of 1 or more.
    """
    limit = _optional(os.environ if env is None else env, STEPS)
    if limit == 0:
        raise ValueError(f"Expected {STEPS} to be 1 or more. Received: 0. Unset it for no limit.")
    return limit


def _check_range(claim: _Claim) -> None:
    if claim.size < 1 or not 0 <= (claim.rank or 0) < claim.size:
        raise ValueError(
            "Expected a rank from 0 up to, and not including, the number of processes. "
            f"Received: {claim.text}. Start the script with `python -m npu_keras run`, or "
            f"correct {claim.names}."
        )


def _check_agreement(first: _Claim, second: _Claim) -> None:
    ranks_agree = first.rank == second.rank or None in (first.rank, second.rank)
    if first.size == second.size and ranks_agree:
        return
    raise ValueError(
        "Expected every source in the environment to give the same rank and the same number of "
        f"processes. Received: {first.text} ({first.source}), but {second.text} "
        f"({second.source}). Unset the one that did not start this process: "
        f"{first.names}, or {second.names}."
    )


def _integer(env: Mapping[str, str], name: str) -> int:
    text = env[name].strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise ValueError(
            f"Expected environment variable {name} to be a whole number of 0 or more, "
            f"of up to {_MOST_DIGITS} digits. Received: {name}={env[name]!r:.80}. "
            "Set it to a number, or unset it."
        )
    return int(text)


def _optional(env: Mapping[str, str], *names: str) -> int | None:
    return next((_integer(env, name) for name in names if name in env), None)


def _show(env: Mapping[str, str], *names: str) -> str:
    return ", ".join(f"{name}={env[name]!r}" for name in names if name in env)


def _mpi(env: Mapping[str, str]) -> Iterator[_Claim]:
    for rank_name, size_name, local_name in _MPI_NAMES:
        present = [name for name in (rank_name, size_name) if name in env]
        if len(present) == 1:
            raise ValueError(
                f"Expected {rank_name} and {size_name} together. Received: only "
                f"{_show(env, *present)}. Start the script with `mpiexec`, or unset {present[0]}."
            )
        if present:
            rank, size = _integer(env, rank_name), _integer(env, size_name)
            local = _optional(env, local_name, "SLURM_LOCALID")
            names = f"{rank_name} and {size_name}"
            yield _Claim("mpi", rank, size, local, names, _show(env, *present))


def _slurm(env: Mapping[str, str], others: list[_Claim]) -> Iterator[_Claim]:
    if "SLURM_PROCID" not in env:
        return  # the shell of `salloc`
    size_name = "SLURM_STEP_NUM_TASKS"
    if size_name not in env:
        size_name = "SLURM_NTASKS"
        if size_name not in env or ("SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env):
            return  # a batch script: it runs once, whatever the number of tasks
    rank, size = _integer(env, "SLURM_PROCID"), _integer(env, size_name)
    mpi = any(claim.source == "mpi" for claim in others)
    one_task_per_node = _optional(env, "SLURM_STEP_NUM_NODES") == size
    if size == 1 or (mpi and one_task_per_node):
        return  # an interactive step, or the step in which `mpiexec` starts its daemons
    local = _optional(env, "SLURM_LOCALID")
    text = _show(env, "SLURM_PROCID", size_name)
    yield _Claim("slurm", rank, size, local, f"SLURM_PROCID and {size_name}", text)


def _ascend(env: Mapping[str, str], others: list[_Claim]) -> Iterator[_Claim]:
    if "RANK_SIZE" in env and "CM_WORKER_SIZE" in env:
        raise ValueError(
            "Expected one of RANK_SIZE (with a rank table) and CM_WORKER_SIZE (without). "
            f"Received: {_show(env, 'RANK_SIZE', 'CM_WORKER_SIZE')}. Unset one of them."
        )
    names = [name for name in ("RANK_ID", "RANK_SIZE", "CM_WORKER_SIZE") if name in env]
    if not names:
        return
    rank, size = _optional(env, "RANK_ID"), _optional(env, "RANK_SIZE", "CM_WORKER_SIZE")
    if "CM_WORKER_SIZE" in env:
        if size is not None and size > _MAX_CM_WORKERS:
            raise ValueError(
                f"Expected CM_WORKER_SIZE from 0 to {_MAX_CM_WORKERS}. "
                f"Received: {_show(env, 'CM_WORKER_SIZE')}. Correct it."
            )
        size = size or 1
    text = _show(env, *names) + (", RANK_SIZE not set" if size is None else "")
    if size is None:
        size = others[0].size if others else 1
    local = _optional(env, "ASCEND_DEVICE_ID", "DEVICE_ID")
    yield _Claim("ascend", rank, size, local, " and ".join(names), text)


def _tf_config(env: Mapping[str, str]) -> Iterator[_Claim]:
    task = tf_config.parse(env.get("TF_CONFIG", ""))
    if task is not None:
        size = len(task.workers)
        text = f"TF_CONFIG with task {task.role} {task.position}, rank {task.rank} of {size}"
        yield _Claim("tf_config", task.rank, size, task.local_rank, "TF_CONFIG", text, task.workers)
