# SPDX-License-Identifier: Apache-2.0
"""Events in a file: one JSON object a line, appended while training goes on."""

import json
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_keras.journal import KINDS, Event

_logger = logging.getLogger("npu_keras")


class EventFile(NamedTuple):
    """What a file of events holds.

    Attributes:
        events: the events, oldest first.
        damaged_lines: numbers, counted from 1, of the lines that are no event.
    """

    events: list[Event]
    damaged_lines: list[int]


class EventLog:
    """Appends events to a file; a file that cannot be written is reported once, then left alone.

    Args:
        path: the file; it and its folder are created when needed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._failed = False

    def open(self) -> None:
        """Creates the file, so that one that cannot be written is known before the first event."""
        self.append([], epoch=0)

    def append(self, events: Sequence[Event], epoch: int) -> None:
        """Writes whole lines, in one go.

        Args:
            events: what to write.
            epoch: the epoch they happened in, counted from 0.
        """
        if self._failed:
            return
        now = time.time()
        lines = [json.dumps({**e._asdict(), "epoch": epoch, "wall_time": now}) for e in events]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
        except OSError as error:
            self._failed = True
            _logger.warning(
                "Loss-scale events cannot be written to %s (%s). Training goes on without.",
                self.path,
                error.strerror or error,
            )


def read_events(path: str | Path) -> EventFile:
    """Reads a file that `EventLog` wrote.

    Where attempt numbers start again, because a run was resumed from a checkpoint or begun anew,
    the later events take the place of the earlier ones with the same or a higher number.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    events: list[Event] = []
    damaged: list[int] = []
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        event = _parsed(line)
        if event is not None:
            events.append(event)
        elif line.strip():
            damaged.append(number)
    return EventFile(_latest(events), damaged)


def _parsed(line: str) -> Event | None:
    try:
        fields: dict[str, Any] = json.loads(line)
        event = Event(**{name: fields[name] for name in Event._fields if name in fields})
        numbers = (event.attempt, event.scale_before, event.scale_after)
        valid = event.kind in KINDS and all(isinstance(n, int | float) for n in numbers)
        return event if valid else None
    except (ValueError, TypeError):
        return None


def _latest(events: Iterable[Event]) -> list[Event]:
    kept: list[Event] = []
    for event in events:
        while kept and kept[-1].attempt >= event.attempt:
            kept.pop()
        kept.append(event)
    return kept
