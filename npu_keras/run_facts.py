# SPDX-License-Identifier: Apache-2.0
"""The numbers of a run, counted from its events."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from npu_keras.events import BACK_OFF, GROW, Event
from npu_keras.words import scale_text, share_text


class Suspect(NamedTuple):
    """A variable that was the first to overflow, in the order of the model.

    An overflow goes on to the gradients of all layers before the one where it began, so the first
    variable of many is rarely where it began; a variable that overflows alone is.

    Attributes:
        variable: its path.
        steps: number of skipped steps in which it was the first.
        alone: number of those in which it was the only one.
        first: the first of them.
        last: the last of them.
    """

    variable: str
    steps: int
    alone: int
    first: int
    last: int


class RunFacts:
    """What events say about a run.

    Args:
        events: the events, oldest first.
        attempts: steps tried; by default the step of the last event, since later steps are unknown.
    """

    def __init__(self, events: Sequence[Event], attempts: int | None = None) -> None:
        self.events = events
        last = events[-1].attempt if events else 0
        self.attempts = last if attempts is None else max(attempts, last)
        self.complete = attempts is not None

    @cached_property
    def skips(self) -> list[Event]:
        """The events of skipped steps."""
        return [event for event in self.events if event.skipped]

    @cached_property
    def growths(self) -> list[Event]:
        """The events in which the scale grew."""
        return [event for event in self.events if event.kind == GROW]

    @cached_property
    def back_offs(self) -> list[Event]:
        """The events in which the scale was lowered."""
        return [event for event in self.events if event.kind == BACK_OFF]

    def suspects(self) -> list[Suspect]:
        """Returns the variables that were the first to overflow, worst first."""
        named: dict[str, list[Event]] = {}
        for event in self.skips:
            if event.variable is not None:
                named.setdefault(event.variable, []).append(event)
        found = [_suspect(variable, events) for variable, events in named.items()]
        return sorted(found, key=lambda suspect: (-suspect.steps, suspect.variable))

    def rows(self) -> list[tuple[str, str]]:
        """Returns the numbers as `(what, text)`, those that say something about this run."""
        known = "steps tried" if self.complete else "steps up to the last event"
        rows = [(known, f"{self.attempts:,}"), ("skipped", self._with_share(len(self.skips)))]
        rows += [("growths of the scale", f"{len(self.growths):,}")]
        rows += [("back-offs of the scale", f"{len(self.back_offs):,}")]
        if self.events:
            rows += [("first loss scale", scale_text(self.events[0].scale_before))]
            rows += [("last loss scale", scale_text(self.events[-1].scale_after))]
            seen = [s for e in self.events for s in (e.scale_before, e.scale_after)]
            rows += [("lowest and highest", f"{scale_text(min(seen))} and {scale_text(max(seen))}")]
        if self.skips:
            rows += self._overflow_rows()
        return rows

    def _overflow_rows(self) -> list[tuple[str, str]]:
        forward = sum(event.forward for event in self.skips)
        infs, nans = (sum(getattr(e, name) for e in self.skips) for name in ("infs", "nans"))
        rows = [("last skipped step", f"{self.skips[-1].attempt:,}")]
        rows += [("infinite and NaN elements", f"{infs:,} and {nans:,}")]
        if forward:
            rows += [("skipped, loss not finite", f"{forward:,}")]
        ranks = Counter(event.rank for event in self.skips if event.rank is not None)
        if ranks:
            text = ", ".join(f"{count:,} on rank {rank}" for rank, count in ranks.most_common(8))
            rows += [("overflows by rank", text + (", ..." if len(ranks) > 8 else ""))]
        return rows

    def _with_share(self, count: int) -> str:
        return f"{count:,} ({share_text(count, self.attempts)})" if count else "0"


def _suspect(variable: str, events: Sequence[Event]) -> Suspect:
    alone = sum(event.bad_variables == 1 for event in events)
    return Suspect(variable, len(events), alone, events[0].attempt, events[-1].attempt)
