# SPDX-License-Identifier: Apache-2.0
"""How the cost of a step grows: with parameters, variables and ranks."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.contestants import WORKERS, Contestant, Setting, contestant
from benchmarks.harness import Row, Timed, in_turns
from benchmarks.one_process import OURS, PLAIN
from benchmarks.two_processes import npu_keras_ranks

LINEAR = "linear"
MANY = 1000
"""The number of variables whose first step has a target."""


def more_parameters(setting: Setting) -> Iterator[Row]:
    """The step of Adam by millions of parameters."""
    yield from _growth("M parameters", "wide", (1, 10) if setting.quick else (1, 10, 100))


def more_variables(setting: Setting) -> Iterator[Row]:
    """The step and the first step of Adam by the number of variables of 32 numbers each."""
    yield from _growth("variables", "bank", (10, 100) if setting.quick else (100, MANY))


def most_variables(setting: Setting) -> Iterator[Row]:
    """The same for ten times as many."""
    yield from _growth("variables", "bank", (100, 1000) if setting.quick else (MANY, 10 * MANY))


def _growth(unit: str, model: str, sizes: Sequence[int]) -> Iterator[Row]:
    """Compares our step with the plain one by size, each way in a process of its own."""
    ways = (PLAIN, OURS)
    rows = []
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(ways)) as pool:

        def start(way: str) -> Contestant:
            command = [sys.executable, str(WORKERS / "one_process.py"), way, model]
            return stack.enter_context(contestant([[*command, *map(str, sizes)]], [{}], 1))

        started = dict(zip(ways, pool.map(start, ways), strict=True))
        for size in sizes:  # from small to large, for the sake of the peak of memory
            name = f"growth: {size} {unit}, Adam"
            # At the same time: many variables take one core for a minute each.
            first = pool.map(lambda way: started[way].most(f"first_step_{size}", 1), ways)  # noqa: B023
            timed = [Timed(way, [seconds]) for way, seconds in zip(ways, first, strict=True)]
            steps = {way: one.way(f"step_{size}", 1) for way, one in started.items()}
            rows.append(in_turns(name, steps, turns=6, reported=True))
            yield rows[-1]
            target = {OURS: 1.15} if size == MANY and model == "bank" else {}
            yield Row(f"{name}: first step", timed, target)
            yield _peak_memory(name, started)
    less, more = (row.median(OURS) for row in rows[-2:])
    grown = Timed(OURS, [more / less / (sizes[-1] / sizes[-2])])
    name = f"growth: {sizes[-1]} {unit} against {sizes[-2]}, Adam"
    yield Row(name, [Timed(LINEAR, [1.0]), grown], {OURS: 1.1}, unit="of linear")


def more_ranks(setting: Setting) -> Iterator[Row]:
    """A step of `fit` by the number of ranks, each with a batch of its own, on the same cores."""
    name = "growth: 9.5 M parameters, SGD"
    counts = (1, 2, 4)
    ranks = {f"{n} ranks, mpi": npu_keras_ranks(setting, "mpi", n) for n in counts}
    steps, turns = (2, 3) if setting.quick else (2, 4)
    ways = {way: started.way("fit", steps) for way, started in ranks.items()}
    yield in_turns(name, ways, turns=turns, reported=True)
    yield _peak_memory(name, ranks)


def _peak_memory(name: str, started: dict[str, Contestant]) -> Row:
    peaks = [Timed(way, [one.peak_memory() / 1e6]) for way, one in started.items()]
    return Row(f"{name}: peak memory of a process", peaks, {}, unit="MB")
