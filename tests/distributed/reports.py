# SPDX-License-Identifier: Apache-2.0
"""What ranks saw: runs the worker once for each engine and number of ranks, and reads its lines."""

import functools
import json
from pathlib import Path

import pytest
from launch import run_ranks

WORKER = Path(__file__).parent / "worker" / "run.py"
MARK = "CHECK "
MODULES = {
    2: "decision,shares,shares_saved,agreement,equivalence,accumulating,sparse_rows,wire_plan,"
    "nesting,saving,functions,tail",
    3: "decision,shares",
}
TIMEOUT_S = 500


class Reports:
    """The reports of one run, by the name of the check and by rank.

    A test that is marked `two_ranks` or `some_ranks` gets one for each engine:

        @two_ranks
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
    results = run_ranks(WORKER, size, engine, MODULES[size], timeout_s=TIMEOUT_S)
    return [(read_reports(result.output), result.output) for result in results]


def runs(*pairs):
    """Parametrizes a test by pairs of engine and number of ranks."""
    names = [f"{engine}-{size}" for engine, size in pairs]
    return pytest.mark.parametrize("ranks", [Reports(*pair) for pair in pairs], ids=names)


two_ranks = runs(("mpi", 2))
"""Everything; an engine joins here."""

some_ranks = runs(("mpi", 2), ("mpi", 3))
"""What must hold for any number of ranks."""
