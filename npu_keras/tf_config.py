# SPDX-License-Identifier: Apache-2.0
"""The environment variable `TF_CONFIG`, read and written."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_ROLES = ("chief", "worker")  # in rank order


class Task(NamedTuple):
    """What `TF_CONFIG` says of this process.

    Args:
        role: `"chief"` or `"worker"`.
        position: int, the task's index among those of its role.
        chiefs: int, number of chiefs, 0 or 1.
        workers: `host:port` of every rank in rank order, the chief first.
    """

    role: str
    position: int
    chiefs: int
    workers: tuple[str, ...]

    @property
    def rank(self) -> int:
        """Position among all ranks."""
        return self.position + (self.chiefs if self.role == "worker" else 0)

    @property
    def local_rank(self) -> int:
        """Position among the ranks with the same host name."""
        hosts = [address.rpartition(":")[0] for address in self.workers]
        return hosts[: self.rank].count(hosts[self.rank])


def render(addresses: Sequence[str], rank: int) -> str:
    """Makes the `TF_CONFIG` of one worker.

    Args:
        addresses: `host:port` of every rank.
        rank: the worker's rank.

    Returns:
        JSON text.
    """
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": task})


def parse(text: str) -> Task | None:
    """Reads `TF_CONFIG`.

    Args:
        text: JSON text, perhaps empty.

    Returns:
        A `Task`, or `None` if the text names no cluster.

    Raises:
        ValueError: if the text is malformed, or the task is none of the cluster's that train.
    """
    if not text.strip():
        return None
    jobs, role, index = _read(text)
    if not jobs:
        return None
    _check_roles(jobs, role, text)
    if role not in jobs or not 0 <= index < len(jobs[role]):
        raise ValueError(
            f"Expected the task of TF_CONFIG to be one of its cluster, {jobs}. Received: "
            f"type {role!r}, index {index!r}. Give the task's type and index of this process."
        )
    workers = tuple(address for name in _ROLES for address in jobs.get(name, ()))
    return Task(role, index, len(jobs.get("chief", ())), workers)


def _read(text: str) -> tuple[dict[str, list[str]], str, int]:
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        task = config.get("task") or {}
        jobs = {role: _addresses(cluster[role]) for role in cluster}
        return jobs, str(task.get("type")), int(str(task.get("index", 0)))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            "Expected TF_CONFIG to be JSON such as "
            '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}. '
            f"Received: TF_CONFIG={text!r:.500} ({error}). Correct it, or unset it."
        ) from error


def _addresses(value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(address, str) for address in value):
        return value
    raise TypeError(f"a list of 'host:port' strings is needed, not {value!r}")


def _check_roles(jobs: Mapping[str, list[str]], role: str, text: str) -> None:
    if role == "evaluator":
        raise ValueError(
            "Expected a task that trains, chief or worker. Received: task type 'evaluator' in "
            f"TF_CONFIG={text!r}. Start the evaluation without TF_CONFIG."
        )
    unknown = sorted({*jobs} - {*_ROLES, "evaluator"})
    if unknown:
        raise ValueError(
            "Expected chief and worker tasks only: gradients are aggregated among workers, "
            f"without parameter servers. Received: {unknown} in TF_CONFIG={text!r}. "
            "Start the same processes as workers."
        )
