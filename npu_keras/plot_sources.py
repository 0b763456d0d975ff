# SPDX-License-Identifier: Apache-2.0
"""Where figures get their numbers: optimizers, journals, events, histories and files."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from npu_keras.epoch_record import EpochRecord, of_csv, of_history
from npu_keras.event_log import MOST_DAMAGED, read_events
from npu_keras.events import Event
from npu_keras.plot_data import ScaleRecord
from npu_keras.run_facts import RunFacts


class OverflowCounts(NamedTuple):
    """In how many skipped steps each variable overflowed.

    Attributes:
        counts: by path of the variable.
        skipped: number of skipped steps.
        first_only: whether a step counts for its first variable only, which is all events name.
        unnamed: skipped steps without any variable.
        notes: what the reader of a figure has to know about what is missing.
    """

    counts: dict[str, int]
    skipped: int
    first_only: bool
    unnamed: int = 0
    notes: Sequence[str] = ()


def load(source: Any) -> ScaleRecord | EpochRecord:
    """Reads a run.

    Args:
        source: see `npu_keras.plotting.plot_loss_scale`.

    Returns:
        The run step by step, or epoch by epoch if that is all the source has.

    Raises:
        TypeError: if `source` is something else.
        ValueError: if it has no column of loss scales.
    """
    if isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(".csv"):
        return of_csv(os.fspath(source))
    if isinstance(getattr(source, "history", None), dict):
        return of_history(source)
    return _load_events(source)


def load_counts(source: Any) -> OverflowCounts:
    """Reads which variables overflowed.

    Args:
        source: see `npu_keras.plotting.plot_overflow_by_variable`.

    Raises:
        TypeError: if it is something else.
    """
    journal = _journal(source)
    if journal is not None:
        counts = journal.overflows_by_variable()
        return OverflowCounts(counts, journal.snapshot().skipped_steps, first_only=False)
    record = _load_events(source)
    facts = RunFacts(record.events)
    named = {suspect.variable: suspect.steps for suspect in facts.suspects()}
    unnamed = len(facts.skips) - sum(named.values())
    return OverflowCounts(named, len(facts.skips), True, unnamed, record.notes)


def damage_text(damaged: Sequence[int]) -> str:
    """Returns a sentence about the damaged lines of a file.

    Args:
        damaged: their numbers, at least one.
    """
    if len(damaged) >= MOST_DAMAGED:
        return f"the file was not read beyond line {damaged[-1]:,}: too many lines are damaged"
    if len(damaged) == 1:
        return f"line {damaged[0]:,} of the file is damaged and left out"
    shown = ", ".join(f"{number:,}" for number in damaged[:3])
    more = ", ..." if len(damaged) > 3 else ""
    return f"{len(damaged):,} lines of the file are damaged and left out ({shown}{more})"


def _load_events(source: Any) -> ScaleRecord:
    if isinstance(source, str | os.PathLike):
        events, damaged = read_events(os.fspath(source))
        return _of_events(events, [damage_text(damaged)] if damaged else [])
    journal = _journal(source)
    if journal is not None:
        return _of_journal(journal, getattr(source, "loss_scale_manager", None))
    if isinstance(source, Sequence) and all(isinstance(event, Event) for event in source):
        return _of_events(source)
    raise TypeError(
        "`source` must be a loss-scaled optimizer of npu_keras, its journal, a list of "
        "`npu_keras.Event`, or the path of a file that `LossScaleLogger(jsonl=...)` wrote "
        "(for `plot_loss_scale` also a `History`, or the path of a CSV file of `CSVLogger`). "
        f"Received: source={source!r}"
    )


def _journal(source: Any) -> Any:
    if hasattr(source, "overflows_by_variable") and hasattr(source, "snapshot"):
        return source
    return getattr(source, "journal", None) if hasattr(source, "loss_scale_manager") else None


def _of_events(events: Sequence[Event], notes: Sequence[str] = ()) -> ScaleRecord:
    attempts = max((event.attempt for event in events), default=0)
    skipped = sum(event.skipped for event in events)
    return ScaleRecord(events, attempts, skipped, notes=notes)


def _of_journal(journal: Any, manager: Any) -> ScaleRecord:
    from npu_keras.journal import JournalReader  # whoever has a journal has TensorFlow

    reader = JournalReader(journal, since=0)
    events = reader.drain()
    now = journal.snapshot()
    first, notes = 1, []
    if reader.lost:
        first = events[0].attempt
        notes.append(
            f"the optimizer keeps the last {len(events)} events; {reader.lost:,} earlier ones "
            "are not drawn"
        )
    floor, ceiling = (getattr(manager, f"{name}_loss_scale", None) for name in ("min", "max"))
    return ScaleRecord(
        events, now.attempted_steps, now.skipped_steps, now.loss_scale,
        floor, ceiling, complete=True, first=first, notes=notes,
    )  # fmt: skip
