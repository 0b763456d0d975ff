# SPDX-License-Identifier: Apache-2.0
"""Whether loss scaling goes well, judged from the events of a run."""

from collections.abc import Sequence
from typing import NamedTuple

from npu_keras import advice
from npu_keras.events import BACK_OFF, Event
from npu_keras.run_facts import RunFacts
from npu_keras.words import counted, scale_text, share_text

HEALTHY = "healthy"
SETTLING = "settling"
TOO_HIGH = "too high"
STUCK = "stuck at the floor"
FORWARD = "forward pass not finite"
UNKNOWN = "nothing recorded"

WINDOW = 1000
"""How many of the last steps are judged; what was before is past."""

HIGH_RATE = 0.05
"""Share of skipped steps above which a settled run loses noticeably; usual are below 0.005, two
overflows after every 1000 good steps."""

FEW = 3
"""So many overflows can be an accident of a batch; more than `FEW` in a row show a trend."""

QUIET = 50
"""After so many steps without an overflow, a scale that has come down counts as settled."""

DEFAULT_FLOOR = 1.0
"""The managers' floor, unless another was given."""


class Verdict(NamedTuple):
    """The judgement on a run.

    Attributes:
        state: `HEALTHY`, `SETTLING`, `TOO_HIGH`, `STUCK`, `FORWARD`, or `UNKNOWN` without events.
        reason: a sentence that says why, with numbers.
        advice: what to try, the most promising first.
    """

    state: str
    reason: str
    advice: tuple[str, ...]


def judge(
    events: Sequence[Event], attempts: int | None = None, floor: float | None = None
) -> Verdict:
    """Judges a run, by its last `WINDOW` steps and not before its scale first grew.

    Args:
        events: the events, oldest first.
        attempts: steps tried; by default those up to the last event.
        floor: lower bound of the scale. Unless given, a scale counts as at its floor when as many
            overflows as lowered it before did not lower it, or when it is at most 1.

    Returns:
        A `Verdict`.

    Example:

    >>> judge([Event(1, "back off", 4.0, 2.0), Event(900, "grow", 2.0, 4.0)]).state
    'healthy'
    """
    run = RunFacts(events, attempts)
    if not events:
        return Verdict(UNKNOWN, _nothing(run), advice.WITHOUT_EVENTS)
    tail = _recent(run)
    return (
        _forward(run, tail)
        or _stuck(run, floor)
        or _falling(run)
        or _settling(run)
        or _too_high(run, tail)
        or _healthy(run, tail)
    )


class _Tail(NamedTuple):
    skips: list[Event]
    steps: int

    @property
    def text(self) -> str:
        share = share_text(len(self.skips), self.steps)
        return f"{len(self.skips):,} of the last {counted(self.steps, 'step')} ({share})"


def _recent(run: RunFacts) -> _Tail:
    start = max(run.attempts - WINDOW, 0)
    if run.growths:
        settled = [e.attempt for e in run.skips if e.attempt < run.growths[0].attempt]
        start = max(start, settled[-1] if settled else 0)
    return _Tail([e for e in run.skips if e.attempt > start], run.attempts - start)


def _nothing(run: RunFacts) -> str:
    if run.complete:
        return f"In {run.attempts:,} steps no gradient overflowed and the scale did not grow."
    return "There is no event: no gradient overflowed and the scale did not grow, or no step ran."


def _forward(run: RunFacts, tail: _Tail) -> Verdict | None:
    bad = [event for event in tail.skips if event.forward]
    lately = run.skips[-FEW:]
    steady = len(lately) == FEW and all(e.forward for e in lately) and lately[0] in tail.skips
    if not bad or (2 * len(bad) < len(tail.skips) and not steady):
        return None
    of = f"{len(bad):,} of the last {counted(len(tail.skips), 'skipped step')}"
    return Verdict(
        FORWARD,
        f"In {of} the loss itself was infinite or NaN, first in step {bad[0].attempt:,}. "
        "No loss scale can cure that.",
        advice.for_forward(bad),
    )


def _stuck(run: RunFacts, floor: float | None) -> Verdict | None:
    tail = _run_at_one_scale(run)
    if len(tail) < FEW or len(tail) <= HIGH_RATE * (run.attempts - tail[0].attempt + 1):
        return None
    scale = tail[-1].scale_before
    if not _is_floor(run, tail, scale, floor):
        return None
    return Verdict(
        STUCK,
        f"The scale is {scale_text(scale)} and does not fall any further; {len(tail):,} overflows "
        f"since step {tail[0].attempt:,} were skipped at it.",
        advice.for_floor(tail, run.suspects()),
    )


def _run_at_one_scale(run: RunFacts) -> list[Event]:
    tail: list[Event] = []
    for event in reversed(run.events):
        same = not tail or event.scale_before == tail[-1].scale_before
        if not event.skipped or event.kind == BACK_OFF or not same:
            break
        tail.append(event)
    return tail[::-1]


def _is_floor(run: RunFacts, tail: Sequence[Event], scale: float, floor: float | None) -> bool:
    if floor is not None:
        return scale <= floor
    needed = min((event.bad_steps for event in run.back_offs if event.bad_steps), default=0)
    unmoved = bool(needed) and any(event.bad_steps >= needed for event in tail)
    return scale <= DEFAULT_FLOOR or unmoved


def _falling(run: RunFacts) -> Verdict | None:
    """A scale that had settled and comes down in one go: the gradients have grown."""
    tail: list[Event] = []
    for event in reversed(run.events):
        if not event.skipped or (tail and event.attempt != tail[-1].attempt - 1):
            break
        tail.append(event)
    lowered = [event for event in tail if event.kind == BACK_OFF]
    ended = run.attempts - run.events[-1].attempt > QUIET
    if not run.growths or ended or len(tail) <= FEW or len(lowered) < 2:
        return None
    return Verdict(
        TOO_HIGH,
        f"The last {len(tail)} steps in a row overflowed, and the scale fell from "
        f"{scale_text(tail[-1].scale_before)} to {scale_text(tail[0].scale_after)}, although it "
        "had settled before: the gradients have grown.",
        advice.for_falling(tail[::-1], run.suspects()),
    )


def _settling(run: RunFacts) -> Verdict | None:
    quiet = run.attempts - run.skips[-1].attempt if run.skips else 0
    rate = len(run.skips) / max(run.attempts, 1)
    if run.growths or not run.back_offs or quiet >= QUIET or rate <= HIGH_RATE:
        return None
    first, last = run.events[0].scale_before, run.events[-1].scale_after
    ending = "." if run.complete else ", where the record ends."
    return Verdict(
        SETTLING,
        f"The scale came down from {scale_text(first)} to {scale_text(last)} in "
        f"{counted(len(run.skips), 'skipped step')}, up to step {run.skips[-1].attempt:,}{ending}",
        advice.for_settling(last, run.skips),
    )


def _too_high(run: RunFacts, tail: _Tail) -> Verdict | None:
    if len(tail.skips) < FEW or len(tail.skips) <= HIGH_RATE * tail.steps:
        return None
    if not run.growths and run.attempts - run.skips[-1].attempt >= QUIET:
        return None
    moves = bool(run.growths or run.back_offs)
    how = (
        "the scale grows back too often to where it overflows"
        if moves
        else "the scale does not move"
    )
    return Verdict(
        TOO_HIGH,
        f"{tail.text} were skipped: {how}.",
        advice.for_too_high(tail.skips, run.suspects(), moves),
    )


def _healthy(run: RunFacts, tail: _Tail) -> Verdict:
    last = scale_text(run.events[-1].scale_after)
    lost = len(tail.skips)
    if not run.skips:
        text = f"No step was skipped, and the scale grew to {last}."
    elif lost and (lost < FEW or lost <= HIGH_RATE * tail.steps):
        text = f"{tail.text} were skipped. The scale is {last}."
    else:
        text = f"No step was skipped after step {run.skips[-1].attempt:,}; the scale is {last}."
    return Verdict(HEALTHY, text, advice.for_healthy(run.skips))
