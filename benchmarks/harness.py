# SPDX-License-Identifier: Apache-2.0
"""Times ways to do one thing in turns, A B A B, so that what the machine does hits all alike."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Timed(NamedTuple):
    """The times of one way, in seconds."""

    name: str
    seconds: list[float]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile."""
        low, middle, high = np.percentile(self.seconds, [25, 50, 75])
        return float(low), float(middle), float(high)


class Row(NamedTuple):
    """One comparison.

    Attributes:
        name: what is compared.
        timed: the ways, the first of which the others are divided by.
        target: the largest ratio wanted of each way, by name; None for none.
        absent: what could not be measured, and why.
        unit: of the figures; times are in seconds and shown in milliseconds.
    """

    name: str
    timed: list[Timed]
    target: dict[str, float | None]
    absent: Sequence[str] = ()
    unit: str = "ms"

    def ratio(self, way: Timed) -> float:
        """Median of the ratios of each turn of `way` to the first way's turn beside it."""
        first = np.array(self.timed[0].seconds)
        return float(np.median(np.array(way.seconds) / first))

    def median(self, name: str) -> float:
        """Returns the median of a way, in seconds."""
        return self._way(name).quartiles[1]

    def against(self, base: str, target: dict[str, float | None]) -> Iterator["Row"]:
        """Divides some of the ways by another; nothing if one of them is absent."""
        have = {way.name for way in self.timed}
        if {base, *target} <= have:
            ways = [self._way(base), *(self._way(name) for name in target)]
            yield Row(f"{self.name}: against {base}", ways, target)

    def added(self, plain: str, base: str, target: dict[str, float | None]) -> Iterator["Row"]:
        """Compares what ways add to a plain one, turn by turn."""
        without = np.array(self._way(plain).seconds)

        def more(name: str) -> Timed:
            return Timed(name, list(np.array(self._way(name).seconds) - without))

        yield Row(f"{self.name}: added time", [more(base), *map(more, target)], target)

    def quotients(
        self, base: tuple[str, str], other: tuple[str, str], target: float
    ) -> Iterator["Row"]:
        """Compares two ways, each divided by another one of its own stack."""
        if {*base, *other} <= {way.name for way in self.timed}:
            parts = [self._quotient(pair) for pair in (base, other)]
            yield Row(f"{self.name}: slowdown", parts, {parts[1].name: target}, unit="times")

    def _quotient(self, pair: tuple[str, str]) -> Timed:
        over, under = (np.array(self._way(name).seconds) for name in pair)
        return Timed(f"{pair[0]} / {pair[1]}", list(over / under))

    def _way(self, name: str) -> Timed:
        return next(way for way in self.timed if way.name == name)


def in_turns(
    name: str,
    ways: dict[str, Callable[[], Any]],
    *,
    turns: int,
    warm_up: int = 1,
    target: dict[str, float | None] | None = None,
    reported: bool = False,
) -> Row:
    """Calls each way `turns` times, in turns; every second turn backwards.

    Args:
        name: what is compared.
        ways: functions without arguments, by name; the first is what the others are divided by.
        turns: how many turns are timed.
        warm_up: how many come before and are left out.
        target: the largest ratio wanted of each way, by name; None for none.
        reported: whether the functions return the seconds themselves.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(warm_up + turns):
        order = list(ways) if turn % 2 else list(reversed(ways))
        for way in order:
            begin = time.perf_counter()
            own = ways[way]()
            taken = own if reported else time.perf_counter() - begin
            if turn >= warm_up:
                seconds[way].append(taken)
    return Row(name, [Timed(way, times) for way, times in seconds.items()], target or {})
