# SPDX-License-Identifier: Apache-2.0
"""What ranks saw: runs the worker once for each engine and number of ranks, and reads its lines."""

import functools
import json
from pathlib import Path

import pytest
from launch import run_ranks

WORKER = Path(__file__).parent / "worker" / "run.py"
MARK = "CHECK "
EVERYWHERE = ["decision"]
EVERY_ENGINE = ["shares", "agreement", "equivalence", "sparse_rows", "functions", "tail"]
ONE_ENGINE = ["shares_saved", "accumulating", "wire_plan", "nesting", "composites", "saving"]
RUNS = {
    ("mpi", 2): [*EVERYWHERE, *EVERY_ENGINE, *ONE_ENGINE],
    ("mpi", 3): [*EVERYWHERE, "shares"],
    ("collective", 2): [*EVERYWHERE, *EVERY_ENGINE],
    ("collective", 3): EVERYWHERE,
}
"""The modules of checks for each engine and number of ranks."""

TIMEOUT_S = 500


class Reports:
    """The reports of one run, by the name of the check and by rank.

    A test gets one for each run in which the module of its check takes part:

        @in_runs_of("decision")
        def test_something(ranks):
            assert ranks.same("name_of_a_check") == 3
    """

    def __init__(self, engine, size):
        self.engine, self.size = engine, size

    def __call__(self, name):
        """Returns what each rank reported, in rank order."""
        return [told(name, *each) for each in _run(self.engine, self.size)]

    def same(self, name):
        """Returns the one report that all ranks made."""
        first, *others = self(name)
        for rank, other in enumerate(others, start=1):
            assert other == first, f"rank {rank} differs from rank 0"
        return first


def read_reports(output):
    """Returns the reports in what a worker wrote, by the name of the check."""
    lines = [line[len(MARK) :] for line in output.splitlines() if line.startswith(MARK)]
    return {name: report for name, report, _ in map(json.loads, lines)}


def told(name, reports, output):
    """Returns a report; fails with the traceback if there is one in its place."""
    assert name in reports, f"did not get to {name}:\n{output[-3000:]}"
    report = reports[name]
    failed = isinstance(report, dict) and "traceback" in report
    assert not failed, report["traceback"]
    return report


@functools.cache
def _run(engine, size):
    results = run_ranks(WORKER, size, engine, ",".join(RUNS[engine, size]), timeout_s=TIMEOUT_S)
    return [(read_reports(result.output), result.output) for result in results]


def in_runs_of(module):
    """Parametrizes a test by the runs in which a module of checks takes part."""
    pairs = [pair for pair, modules in RUNS.items() if module in modules]
    names = [f"{engine}-{size}" for engine, size in pairs]
    return pytest.mark.parametrize("ranks", [Reports(*pair) for pair in pairs], ids=names)
