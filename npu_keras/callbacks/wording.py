# SPDX-License-Identifier: Apache-2.0
"""The sentences about a loss scale that a user reads during training."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from npu_keras.events import GROW, Event, Snapshot
from npu_keras.words import scale_text, steps_text

COMFORTABLE_SCALE = 2.0**16
"""About the largest scale of an ordinary loss whose gradients float16 can hold (at most 65504)."""

HIGH_RATE = 0.5
"""Above this share of skipped steps, once the scale has settled, something needs attention."""


class Span(NamedTuple):
    """What happened between two moments.

    Attributes:
        before: the counters at the first moment.
        after: the counters at the second.
        events: the events in between, oldest first.
        lost: how many more there were, overwritten before they were read.
    """

    before: Snapshot
    after: Snapshot
    events: Sequence[Event]
    lost: int = 0

    @property
    def attempted(self) -> int:
        """Steps tried in between."""
        return self.after.attempted_steps - self.before.attempted_steps

    @property
    def skipped(self) -> int:
        """Steps skipped in between."""
        return self.after.skipped_steps - self.before.skipped_steps

    @property
    def overflow_rate(self) -> float:
        """Share of the steps tried that were skipped; 0 without steps."""
        return self.skipped / self.attempted if self.attempted > 0 else 0.0


class Report(NamedTuple):
    """A line for the user.

    Attributes:
        text: one line.
        needs_action: whether training will not get better by itself.
    """

    text: str
    needs_action: bool


def settling_steps(manager: Any, loss_scale: float) -> int:
    """Estimates how many steps will be skipped until a too high first scale has come down.

    Args:
        manager: the loss-scale manager; without `decr_ratio` the scale never falls, so 0.
        loss_scale: the scale of the first step.

    Returns:
        log2(loss_scale / 2**16) back-offs for halving, times the overflows each one takes.
    """
    ratio = getattr(manager, "decr_ratio", None)
    every = getattr(manager, "decr_every_n_nan_or_inf", None)
    if ratio is None or every is None or loss_scale <= COMFORTABLE_SCALE:
        return 0
    back_offs = math.log2(loss_scale / COMFORTABLE_SCALE) / math.log2(1 / ratio)
    return math.ceil(round(back_offs, 6)) * every


def forecast(manager: Any, loss_scale: float) -> str | None:
    """Returns the line about a too high first scale, or None when there is nothing to say.

    Args:
        manager: the loss-scale manager.
        loss_scale: the scale of the first step.
    """
    steps = settling_steps(manager, loss_scale)
    if not steps:
        return None
    return (
        f"Loss scale starts at {scale_text(loss_scale)}: in float16 expect about {steps} skipped "
        f"steps while it settles (from {scale_text(COMFORTABLE_SCALE)} there would be few)."
    )


def describe(epoch: int, span: Span, manager: Any) -> Report | None:
    """Returns the line about an epoch, or None when nothing happened.

    Args:
        epoch: the epoch, counted from 0.
        span: what happened in it.
        manager: the loss-scale manager, for its limits.
    """
    if not span.events and not span.lost:
        return None
    overflows = [event for event in span.events if event.skipped]
    causes = [_forward(overflows), _floor(overflows, manager)] if overflows else []
    settled = span.before.scale_growths > 0 or not hasattr(manager, "decr_ratio")
    calm = not (settled or any(causes) or _grew_before(span, overflows))
    parts = [_movement(span)]
    if overflows:
        parts += [_skips(span, overflows, calm), _first(overflows), _ranks(overflows)]
        parts += [_pending(span, manager), _total(span), *causes]
    if span.lost:
        parts.append(f"{span.lost} earlier events were overwritten before they were read")
    text = f"Epoch {epoch + 1}: {'; '.join(part for part in parts if part)}."
    passes_by_itself = not (settled or any(causes))
    return Report(text, needs_action=span.overflow_rate > HIGH_RATE and not passes_by_itself)


def _movement(span: Span) -> str:
    before, after = scale_text(span.before.loss_scale), scale_text(span.after.loss_scale)
    text = f"loss scale {before} -> {after}" if before != after else f"loss scale still {before}"
    grown = span.after.scale_growths - span.before.scale_growths
    lowered = span.after.scale_backoffs - span.before.scale_backoffs
    grew = f"grew {_times(grown)}" if grown else ""
    fell = f"fell {_times(lowered)}" if lowered else ""
    moves = ", ".join(part for part in (grew, fell) if part)
    return f"{text} ({moves})" if moves else text


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _skips(span: Span, overflows: Sequence[Event], calm: bool) -> str:
    steps = steps_text([event.attempt for event in overflows])
    text = f"{span.skipped} of {span.attempted} steps skipped ({steps})"
    return f"{text}, as expected while the scale settles" if calm else text


def _first(overflows: Sequence[Event]) -> str:
    event = overflows[0]
    if event.variable is None:
        return ""
    others = event.bad_variables - 1
    more = f" (and {others} more)" if others > 0 else ""
    rank = "" if event.rank is None else f" on rank {event.rank}"
    return f"first overflow in {event.variable}{more}{rank}"


def _ranks(overflows: Sequence[Event]) -> str:
    counts = Counter(event.rank for event in overflows if event.rank is not None)
    if len(overflows) == 1 or not counts:
        return ""
    # The lowest rank that overflowed in a step stands for the others.
    return ", ".join(f"{count} on rank {rank}" for rank, count in sorted(counts.items()))


def _pending(span: Span, manager: Any) -> str:
    every = getattr(manager, "decr_every_n_nan_or_inf", None)
    counted = span.after.bad_steps
    if every is None or not 0 < counted < every:
        return ""
    return f"{counted} of {every} overflows towards the next decrease"


def _total(span: Span) -> str:
    if span.after.attempted_steps == span.attempted:
        return ""
    return f"{span.after.skipped_steps} of {span.after.attempted_steps} skipped in total"


def _grew_before(span: Span, overflows: Sequence[Event]) -> bool:
    growths = [event.attempt for event in span.events if event.kind == GROW]
    return bool(growths and overflows and growths[0] < overflows[-1].attempt)


def _forward(overflows: Sequence[Event]) -> str:
    count = sum(event.forward for event in overflows)
    if not count:
        return ""
    where = "there" if count == len(overflows) else f"in {count} of these steps"
    return (
        f"{where} the loss itself was not finite, which no loss scale can cure: look at the data "
        "and the forward pass"
    )


def _floor(overflows: Sequence[Event], manager: Any) -> str:
    floor = manager.min_loss_scale
    gradients = [event for event in overflows if not event.forward]
    if floor is None or not gradients or gradients[-1].scale_before > floor:
        return ""
    return (
        f"the scale is at its floor of {scale_text(floor)}: lower `min_loss_scale`, or look for "
        "what makes the gradients so large"
    )
