# SPDX-License-Identifier: Apache-2.0
"""What skipped steps say about a run: pure rules over the events of the journal."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from npu_keras import advice
from npu_keras.events import Event
from npu_keras.run_facts import RunFacts, Suspect
from npu_keras.words import scale_text

FLOOR, RUN, RATE = "floor", "run", "rate"
FORWARD, FORWARD_AGAIN = "forward", "forward again"
FORWARD_RUN = 3
"""A bad sample costs one step; a loss that is not finite so often in a row is no accident."""

NAMES_SHOWN = 3


class Limits(NamedTuple):
    """What is still normal.

    Attributes:
        consecutive_skips: most skipped steps in a row, or None.
        overflow_rate: largest share of skipped steps in the window, or None.
        window: steps of the window.
        floor: the manager's lower bound of the scale, or None.
        lower_after: overflows that lower the scale.
    """

    consecutive_skips: int | None
    overflow_rate: float | None
    window: int
    floor: float | None
    lower_after: int


class Symptom(NamedTuple):
    """Something that is not normal.

    Attributes:
        kind: `FLOOR`, `RUN`, `RATE`, `FORWARD` (once) or `FORWARD_AGAIN` (in a row).
        text: step, scale, variables, and what to try.
    """

    kind: str
    text: str


class Watch:
    """Sees one event after the other.

    Args:
        limits: what is normal.
        attempts: steps tried before.
    """

    def __init__(self, limits: Limits, attempts: int) -> None:
        self._limits = limits
        self._start = attempts
        self._run: list[Event] = []
        self._window: deque[Event] = deque()

    def see(self, event: Event) -> list[Symptom]:
        """Returns the symptoms of an event, the gravest first.

        Args:
            event: the next event of the journal.
        """
        if not event.skipped:
            return []
        in_row = bool(self._run) and event.attempt == self._run[-1].attempt + 1
        self._run = [*self._run, event] if in_row else [event]
        self._window.append(event)
        while self._window[0].attempt <= event.attempt - self._limits.window:
            self._window.popleft()
        found = (self._forward(), self._floor(), self._too_many(), self._too_often())
        return [symptom for symptom in found if symptom is not None]

    def _forward(self) -> Symptom | None:
        event, last = self._run[-1], self._run[-FORWARD_RUN:]
        if not event.forward:
            return None
        again = len(last) == FORWARD_RUN and all(each.forward for each in last)
        what = f"the loss was not finite in {FORWARD_RUN} steps in a row" if again else (
            "the loss itself was not finite"
        )  # fmt: skip
        tips = advice.for_forward(last if again else [event])
        what += ", which no loss scale can cure"
        return Symptom(FORWARD_AGAIN if again else FORWARD, describe(what, [event], tips))

    def _floor(self) -> Symptom | None:
        event, floor = self._run[-1], self._limits.floor
        if floor is None or event.forward or event.scale_before > floor:
            return None
        if event.bad_steps < self._limits.lower_after:
            return None
        what = f"the scale is stuck at its floor of {scale_text(floor)}"
        at_floor = [each for each in self._window if each.scale_before <= floor]
        return Symptom(
            FLOOR, describe(what, at_floor, advice.for_floor(at_floor, _suspects(at_floor)))
        )

    def _too_many(self) -> Symptom | None:
        most = self._limits.consecutive_skips
        if most is None or len(self._run) <= most:
            return None
        what = f"{len(self._run)} steps in a row were skipped, more than {most}"
        if self._run[-1].scale_after < self._run[0].scale_before:
            tips = advice.for_falling(self._run, _suspects(self._run))
        else:
            tips = advice.for_too_high(self._run, _suspects(self._run), moves=False)
        return Symptom(RUN, describe(what, self._run, tips))

    def _too_often(self) -> Symptom | None:
        most, window = self._limits.overflow_rate, self._limits.window
        skips = list(self._window)
        if most is None or skips[-1].attempt - self._start < window:
            return None
        if len(skips) <= most * window:
            return None
        what = f"{len(skips)} of the last {window} steps were skipped, more than {most:.1%}"
        tips = advice.for_too_high(
            skips, _suspects(skips), any(e.kind == "back off" for e in skips)
        )
        return Symptom(RATE, describe(what, skips, tips))


def describe(what: str, events: Sequence[Event], tips: Sequence[str]) -> str:
    """Returns the message: step, scale, what happened, where, and what to try.

    Args:
        what: a clause that says what happened.
        events: the events behind it, at least one.
        tips: sentences.
    """
    last = events[-1]
    names = list(dict.fromkeys(event.variable for event in events if event.variable))
    ranks = sorted({event.rank for event in events if event.rank is not None})
    where = f" First to overflow: {', '.join(names[:NAMES_SHOWN])}." if names else ""
    who = f" Ranks that overflowed: {', '.join(map(str, ranks))}." if ranks else ""
    return (
        f"Step {last.attempt}, loss scale {scale_text(last.scale_before)}: {what}.{where}{who} "
        f"What to try: {' '.join(tips)}"
    )


def _suspects(events: Sequence[Event]) -> list[Suspect]:
    return RunFacts(events).suspects()
