# SPDX-License-Identifier: Apache-2.0
"""Kills ranks again and again: `python -m tests.faults.kills --kills 20 [--engine mpi]`.

One training is killed in one place after another, and goes on from the newest complete checkpoint,
with two ranks, then with one, then with two again. In the end it has to have done what a training
that nobody killed does.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for _folder in (Path(__file__).parent, Path(__file__).parents[1] / "distributed"):
    sys.path.insert(0, str(_folder))

import kills_worker  # noqa: E402
import numpy as np  # noqa: E402
from kills_worker import BAD, PLACES, STEPS, TIMEOUT_S  # noqa: E402
from launch import free_ports, run_ranks  # noqa: E402

from npu_keras.loss_scale import ScaleState  # noqa: E402


def forked(size, arguments, limit_s=90):
    """Runs the worker as ranks over the engine `collective`.

    Returns:
        Their exit statuses, and the seconds from the first end to the last.
    """
    workers = [f"127.0.0.1:{port}" for port in free_ports(size)]
    pids = []
    for rank in range(size):
        pid = os.fork()  # TensorFlow is imported, but has not started anything yet
        if pid == 0:
            cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            if size > 1:
                os.environ["TF_CONFIG"] = json.dumps(cluster)
            try:
                kills_worker.main(*arguments)
            finally:
                os._exit(1)
        pids.append(pid)
    deadline, codes, first = time.monotonic() + limit_s, {}, None
    while len(codes) < size:
        for pid in set(pids) - set(codes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
                first = first or time.monotonic()
        if time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return [codes[pid] for pid in pids], time.monotonic() - first


def over_mpi(size, arguments):
    path = Path(kills_worker.__file__)
    results = run_ranks(path, size, "mpi", *map(str, arguments), timeout_s=180)
    return [-9 if each.returncode == 137 else each.returncode for each in results], 0.0


def expected(attempts):
    """The counters after so many steps: scale, good and bad steps, attempted, skipped."""
    rule, skipped = kills_worker.manager(), 0
    state = ScaleState(*map(np.asarray, rule.initial_state()))
    for number in range(attempts):
        bad = number % 24 in BAD
        state, skipped = rule.next_state(state, not bad, np), skipped + bad
    return [float(state.loss_scale), int(state.good_steps), int(state.bad_steps), attempts, skipped]


def found(folder, rank):
    path = Path(folder, f"found-{rank}.json")
    report = json.loads(path.read_text())
    path.unlink()
    return report


class Training:
    """One training, killed and taken up again; counts what became of it."""

    def __init__(self, folder, start):
        self.folder, self.start = folder, start
        self.epochs, self.named_at_once, self.broken, self.longest_s = 0, 0, 0, 0.0

    def killed(self, size, rank, place):
        """Two epochs more, in the second of which a rank is killed."""
        goal = self.epochs + 3
        codes, waited = self.start(size, (self.folder, goal, rank, place))
        assert codes[rank] == -signal.SIGKILL, (place, codes)
        if size > 1:
            survivor = found(self.folder, 1 - rank)
            assert codes[1 - rank] == 3, codes
            named = f"[Rr]ank {rank} has (died|left|been silent)"
            assert re.search(named, survivor["error"]), survivor["error"]
            assert waited < 3 * TIMEOUT_S
            self.named_at_once += bool(re.search(named, survivor["error"].partition("LOG")[0]))
            self.longest_s = max(self.longest_s, waited)
            self._check_start(survivor)

    def finished(self, size, epochs):
        """So many epochs more, up to the end."""
        codes, _ = self.start(size, (self.folder, self.epochs + epochs, -1, "nowhere"))
        assert codes == [0] * size, codes
        reports = [found(self.folder, rank) for rank in range(size)]
        self._check_start(reports[0])
        assert all(report["weights"] == reports[0]["weights"] for report in reports)
        self.epochs += epochs
        assert reports[0]["counters"][:5] == expected(self.epochs * STEPS), reports[0]
        return reports[0]["weights"]

    def _check_start(self, report):
        """What was loaded is a whole epoch, with the scale that belongs to it."""
        attempts, scale = report["start"]
        assert attempts % STEPS == 0
        assert scale == expected(attempts)[0]
        assert attempts // STEPS >= self.epochs, "a complete checkpoint was lost"
        self.broken += report["broken"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", choices=["collective", "mpi"], default="collective")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", default="2,2,1", help="numbers of ranks, one after another")
    parser.add_argument("--places", default=",".join(PLACES))
    options = parser.parse_args()
    sizes, places = options.sizes.split(","), options.places.split(",")
    plan = [(int(sizes[n % len(sizes)]), places[n % len(places)]) for n in range(options.kills)]
    rng = random.Random(options.seed)
    start = forked if options.engine == "collective" else over_mpi
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        training = Training(folder, start)
        for size, place in plan:
            training.killed(size, rng.randrange(size), place)
            training.epochs = _newest_complete(folder)
        weights = training.finished(2, 2)
        alone = Training(other, forked).finished(1, training.epochs)
    for ours, wanted in zip(weights, alone, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)
    survivors = sum(size > 1 for size, _ in plan)
    print(
        f"{options.engine}: {options.kills} kills ({', '.join(dict.fromkeys(places))}); "
        f"{survivors} survivors named the dead rank, {training.named_at_once} of them in the error "
        f"itself, {training.longest_s:.1f} s later at most; {training.broken} broken files passed "
        f"over; {training.epochs * STEPS} steps in the end, with the scale, counters and weights "
        "of a training without a kill"
    )


def _newest_complete(folder):
    """The epoch of the newest whole file of rank 0; a file is a zip, whose directory comes last."""
    epochs = [0]
    for path in Path(folder).glob("*-0.keras"):
        if zipfile.is_zipfile(path):
            epochs.append(int(path.name[:4]))
    return max(epochs)


if __name__ == "__main__":
    main()
