# SPDX-License-Identifier: Apache-2.0
"""200 random schedules of overflows: each leaves what a run without the skipped batches leaves.

A schedule that fails is shown whole, with its seed; its number follows from nothing else.
"""

import os
import re
from pathlib import Path

import pytest
from launch import run_ranks
from schedules import schedule
from trainers import Host

HOSTS = [
    *(Host(name) for name in ("keras", "tf_keras legacy", "v1", "v1 graph")),
    Host("tf_keras", runs="fused"),
    Host("keras", "saturation", every=2, runs="masked"),
    Host("v1 graph", "saturation", every=2),
    Host("keras", accumulate=3),
]
EACH = 200 // len(HOSTS)
# The ranks of the second engine take half a minute: `make soak`.
ENGINES = {"mpi": 16} | ({"collective": 8} if os.environ.get("SOAK") else {})
WORKER = Path(__file__).with_name("schedules_worker.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_a_schedule_leaves_what_its_good_steps_leave(host):
    trainer = host.trainer()
    first = HOSTS.index(host) * EACH
    planned = [schedule(first + n, saturation=host.mode == "saturation") for n in range(EACH)]
    for each in planned:
        trainer.check(each)
    assert sum(sum(each.bad()) for each in planned) > EACH  # most have several
    assert trainer.traces == trainer.traces_at_first


@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine, schedules", ENGINES.items())
def test_ranks_leave_the_same_whoever_overflows(engine, schedules):
    folders = [WORKER.parent, WORKER.parents[1] / "contract", os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    ranks = run_ranks(WORKER, 2, engine, timeout_s=280, env=env)
    for rank in ranks:
        assert rank.returncode == 0, rank.output
    digests = [re.findall(r"^left (.*)$", rank.output, re.M) for rank in ranks]
    assert digests[0] == digests[1]
    assert len(digests[0]) == schedules
