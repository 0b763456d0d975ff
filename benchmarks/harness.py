# SPDX-License-Identifier: Apache-2.0
"""Times ways to do one thing in turns, A B A B, so that what the machine does hits all alike."""

import time
from collections.abc import Callable
from typing import NamedTuple

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
        target: the largest ratio wanted of each way, by name.
    """

    name: str
    timed: list[Timed]
    target: dict[str, float]

    def ratio(self, way: Timed) -> float:
        """Median of the ratios of each turn of `way` to the first way's turn beside it."""
        first = np.array(self.timed[0].seconds)
        return float(np.median(np.array(way.seconds) / first))


def in_turns(
    name: str,
    ways: dict[str, Callable[[], object]],
    *,
    turns: int,
    warm_up: int = 1,
    target: dict[str, float] | None = None,
) -> Row:
    """Calls each way `turns` times, in turns; every second turn backwards.

    Args:
        name: what is compared.
        ways: functions without arguments, by name; the first is what the others are divided by.
        turns: how many turns are timed.
        warm_up: how many come before and are left out.
        target: the largest ratio wanted of each way, by name.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(warm_up + turns):
        order = list(ways) if turn % 2 else list(reversed(ways))
        for way in order:
            begin = time.perf_counter()
            ways[way]()
            taken = time.perf_counter() - begin
            if turn >= warm_up:
                seconds[way].append(taken)
    return Row(name, [Timed(way, times) for way, times in seconds.items()], target or {})
