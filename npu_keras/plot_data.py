# SPDX-License-Identifier: Apache-2.0
"""The numbers behind the figures: from events to points, and fewer points where there are many."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from npu_keras.events import Event

INTERVALS = 400
"""Into how many intervals the steps are divided when they cannot be drawn one by one."""


class Points(NamedTuple):
    """Points of a line or of marks, in ascending order of `x`."""

    x: np.ndarray
    y: np.ndarray


class Band(NamedTuple):
    """A condensed line: `intervals + 1` edges, and three values per interval."""

    edges: np.ndarray
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


class ScaleRecord(NamedTuple):
    """What is known about a run.

    Attributes:
        events: the events, oldest first.
        attempts: steps tried, as far as known.
        skipped: steps skipped.
        scale: the loss scale at the end, None if unknown.
        floor: lower bound of the scale, if any.
        ceiling: upper bound of the scale, if any.
        complete: whether no more than `attempts` steps were tried; events alone do not tell.
        first: the first step whose events are known.
        notes: what the reader of a figure has to know about what is missing.
    """

    events: Sequence[Event]
    attempts: int
    skipped: int
    scale: float | None = None
    floor: float | None = None
    ceiling: float | None = None
    complete: bool = False
    first: int = 1
    notes: Sequence[str] = ()

    @property
    def headline(self) -> str:
        """One line that says how the run went."""
        if not self.attempts:
            return "Loss scale: no step recorded"
        if not self.complete:
            return f"Loss scale: {self.skipped:,} of the first {self.attempts:,} steps skipped"
        share = f" ({self.skipped / self.attempts:.1%})" if self.skipped else ""
        return f"Loss scale: {self.skipped:,} of {self.attempts:,} steps skipped{share}"

    def with_attempts(self, attempts: int) -> "ScaleRecord":
        """Returns the record of a run in which so many steps are known to have been tried.

        Args:
            attempts: number of steps.
        """
        return self._replace(attempts=max(attempts, self.attempts), complete=True)

    def line(self) -> Points:
        """Returns the corners of the loss scale's step line.

        A scale holds from half a step before the first step that used it.
        """
        x: list[float] = []
        y: list[float] = []
        for event in self.events:
            if not y or event.scale_before != y[-1]:
                x.append(event.attempt - 0.5 if y else self.first - 0.5)
                y.append(event.scale_before)
            if event.scale_after != y[-1]:
                x.append(event.attempt + 0.5)
                y.append(event.scale_after)
        final = y[-1] if y else self.scale
        if final is not None and self.attempts:
            x += [self.attempts + 0.5] if x else [self.first - 0.5, self.attempts + 0.5]
            y += [final] if y else [final, final]
        return _drawable(_points(x, y))

    def skips(self) -> Points:
        """Returns the skipped steps, with their loss scales."""
        chosen = [event for event in self.events if event.skipped]
        return _points([e.attempt for e in chosen], [e.scale_before for e in chosen])

    def moves(self, kind: str) -> Points:
        """Returns where the scale moved, with the scales it moved to.

        Args:
            kind: `"grow"` or `"back off"`.
        """
        chosen = [event for event in self.events if event.kind == kind]
        points = _points([e.attempt + 0.5 for e in chosen], [e.scale_after for e in chosen])
        return _drawable(points)


def band(points: Points, intervals: int = INTERVALS) -> Band:
    """Condenses a line: range and median of each of many intervals.

    Args:
        points: the corners of a line that keeps its value up to the next corner; at least one.
        intervals: how many intervals of equal width there are.
    """
    edges = np.linspace(points.x[0], points.x[-1], intervals + 1)
    entering = np.searchsorted(points.x, edges[:-1], side="right") - 1
    leaving = np.append(np.searchsorted(points.x, edges[1:-1], side="left"), len(points.x))
    pairs = list(zip(entering, leaving, strict=True))
    low = np.array([points.y[first : max(end, first + 1)].min() for first, end in pairs])
    high = np.array([points.y[first : max(end, first + 1)].max() for first, end in pairs])
    inside = edges[:-1, None] + np.diff(edges)[:, None] * np.linspace(0, 1, 65)[:-1]
    values = points.y[np.searchsorted(points.x, inside, side="right") - 1]
    return Band(edges, low, np.quantile(values, 0.5, axis=1, method="lower"), high)


def shares(steps: np.ndarray, last: int, intervals: int = INTERVALS) -> tuple[np.ndarray, ...]:
    """Returns the edges of intervals of the steps, and which share of each is in `steps`.

    Args:
        steps: step numbers.
        last: the last step of all, at least the number of intervals.
        intervals: how many intervals there are.
    """
    edges = np.unique(np.linspace(0, last, intervals + 1).round()) + 0.5
    counts, _ = np.histogram(steps, edges)
    return edges, counts / np.diff(edges)


def _points(x: Sequence[float], y: Sequence[float]) -> Points:
    return Points(np.array(x, np.float64), np.array(y, np.float64))


def _drawable(points: Points) -> Points:
    good = is_drawable(points.y)
    return Points(points.x[good], points.y[good])


def is_drawable(scales: np.ndarray) -> np.ndarray:
    """Returns which scales have a place on a log2 axis: those of float32, without 0 and infinity.

    Args:
        scales: float64 array.
    """
    # Only a manager of the user's own, or a damaged file, has others.
    return (scales >= 2.0**-149) & (scales < 2.0**128)
