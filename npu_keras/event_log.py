# SPDX-License-Identifier: Apache-2.0
"""Events in a file: one JSON object a line, appended while training goes on."""

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from npu_keras.event_parser import parsed
from npu_keras.events import Event
from npu_keras.line_reader import bounded_lines

_logger = logging.getLogger("npu_keras")

MOST_DAMAGED = 100_000
"""A file with so many damaged lines is no file of events, and is read no further."""


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
        """Creates the file, so that one that cannot be written is known before the first event.

        A line that an earlier run left half, because it was killed, is ended.
        """
        self._write("\n" if _ends_in_half_a_line(self.path) else "")

    def append(self, events: Sequence[Event], epoch: int) -> None:
        """Writes whole lines, in one go.

        Args:
            events: what to write.
            epoch: the epoch they happened in, counted from 0.
        """
        now = time.time()
        lines = [json.dumps({**e._asdict(), "epoch": epoch, "wall_time": now}) for e in events]
        self._write("".join(f"{line}\n" for line in lines))

    def _write(self, text: str) -> None:
        if self._failed:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self._failed = True
            _logger.warning(
                "Loss-scale events cannot be written to %s (%s). Training goes on without.",
                self.path,
                error.strerror or error,
            )


def _ends_in_half_a_line(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            return file.read() not in (b"", b"\n")
    except OSError:  # `_write` says so
        return False


def read_events(path: str | Path) -> EventFile:
    """Reads a file that `EventLog` wrote, or that something has damaged since.

    Where attempt numbers start again, because a run was resumed from a checkpoint or begun anew,
    the later events take the place of the earlier ones with the same or a higher number. Reading
    ends at `MOST_DAMAGED` damaged lines, and no line is held that is longer than any event.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    events: list[Event] = []
    damaged: list[int] = []
    for number, line in enumerate(bounded_lines(path), start=1):
        event = None if line is None else parsed(line)
        if event is not None:
            events.append(event)
        elif line is None or line.strip():
            damaged.append(number)
            if len(damaged) == MOST_DAMAGED:
                break
    return EventFile(_latest(events), damaged)


def _latest(events: Iterable[Event]) -> list[Event]:
    kept: list[Event] = []
    for event in events:
        while kept and kept[-1].attempt >= event.attempt:
            kept.pop()
        kept.append(event)
    return kept
