# SPDX-License-Identifier: Apache-2.0
"""Two ranks on two hosts: what they do when the cable is cut, and when it is put in again."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import two_hosts
from launch import ROOT, free_ports
from two_hosts import Host

from npu_keras import tf_config

WORKER = Path(__file__).with_name("worker.py")
TIMEOUT_S = 15
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def link() -> Iterator[two_hosts.Link]:
    reason = two_hosts.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with two_hosts.connected() as link:
        yield link


class Rank(NamedTuple):
    """The process of a rank, and the file it prints to."""

    process: subprocess.Popen[bytes]
    path: Path

    def wait_for(self, text: str, seconds: float = 240) -> str:
        """Returns what it has printed, as soon as `text` is in it."""
        until = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            printed = self.path.read_text()
            if text in printed:
                return printed
            assert not ended, printed
            assert time.monotonic() < until, printed
            time.sleep(0.05)


@contextlib.contextmanager
def started(hosts: Sequence[Host], folder: Path, *args: str) -> Iterator[list[Rank]]:
    """Starts the worker as one rank on each host; kills what is left of them at the end."""
    folder.mkdir()
    ranks = []
    base = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    try:
        for rank, host in enumerate(hosts):
            config = tf_config.render([each.address for each in hosts], rank)
            command = [*host.command, sys.executable, "-u", str(WORKER), str(TIMEOUT_S), *args]
            path = folder / f"rank{rank}"
            with path.open("wb") as file:
                process = subprocess.Popen(
                    command, env={**base, "TF_CONFIG": config}, stdout=file, stderr=file
                )
            ranks.append(Rank(process, path))
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait(20)


def trained(hosts: Sequence[Host], folder: Path) -> list[dict[str, object]]:
    """Returns what the worker tells of its training on each host."""
    with started(hosts, folder) as ranks:
        for rank in ranks:
            assert rank.process.wait(240) == 0, rank.path.read_text()
        return [json.loads(rank.path.read_text().splitlines()[-1]) for rank in ranks]


def test_two_hosts_train_the_same_as_one(link, tmp_path):
    here = [Host((), f"127.0.0.1:{port}") for port in free_ports(2)]
    one = trained(here, tmp_path / "one")
    assert max(link.sent_bytes()) < 10_000
    two = trained(link.hosts, tmp_path / "two")
    print("seconds for 10 steps on one host and on two:", one[0]["seconds"], two[0]["seconds"])
    for report in (*one, *two):
        del report["seconds"]
    assert two == one  # bit for bit
    assert one[0] == one[1]
    assert one[0]["skipped"] == [[4, 1]]
    gradients = one[0]["steps"] * one[0]["bytes"]
    first, second = link.sent_bytes()
    print(f"bytes sent through the cable: {first} and {second}, gradients: {gradients}")
    assert min(first, second) >= gradients


def test_a_cable_that_is_cut_and_healed_in_time_is_no_more_than_a_pause(link, tmp_path):
    with started(link.hosts, tmp_path / "healed", "endless") as ranks:
        for rank in ranks:
            rank.wait_for("step 5\n")
        link.cut()
        time.sleep(TIMEOUT_S / 5)
        reached = [_last_step(rank) for rank in ranks]
        assert abs(reached[0] - reached[1]) <= 1
        time.sleep(0.5)
        assert [_last_step(rank) for rank in ranks] == reached
        link.heal()
        for rank, step in zip(ranks, reached, strict=True):
            text = rank.wait_for(f"step {step + 20}\n", TIMEOUT_S)
            assert "gives up" not in text


def _last_step(rank: Rank) -> int:
    return int(re.findall(r"^step (\d+)$", rank.path.read_text(), re.M)[-1])


def test_a_cut_cable_ends_both_sides_with_the_name_of_the_other(link, tmp_path):
    with started(link.hosts, tmp_path / "cut", "endless") as ranks:
        for rank in ranks:
            rank.wait_for("step 5\n")
        link.cut()
        since = time.monotonic()
        for number, rank in enumerate(ranks):
            rank.wait_for("waited", TIMEOUT_S + 15)
            assert rank.process.wait(60) == 1, rank.path.read_text()
            print(f"rank {number} ended {time.monotonic() - since:.1f} s after the cut")
        texts = [rank.path.read_text() for rank in ranks]
    for number, text in enumerate(texts):
        waited = float(re.search(r"^waited (.*)$", text, re.M)[1])
        assert waited < TIMEOUT_S + 3
        assert f"Rank {number} of 2 gives up: Rank {1 - number} " in text, text
        assert "all_reduce of" in text
        print(f"rank {number} waited {waited:.1f} s:", re.search(r"Rank \d of 2 gives.*", text)[0])
