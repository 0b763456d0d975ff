# SPDX-License-Identifier: Apache-2.0
"""The loss scale at the end of each epoch, as histories and their files have it."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npu_keras.line_reader import bounded_lines
from npu_keras.words import counted

KEY = "loss_scale"
_COUNTERS = ("scale_growths", "scale_backoffs", "skipped_steps")


class EpochRecord(NamedTuple):
    """What is known about a run, an element for each epoch (float64 arrays of one length).

    Attributes:
        epochs: numbers of the epochs, counted from 1 as Keras prints them.
        scales: loss scale at the end of the epoch.
        rates: share of the epoch's steps that were skipped, 0 to 1; NaN if unknown.
        growths: how often the scale grew in the epoch; NaN if unknown.
        back_offs: how often it was lowered; NaN if unknown.
        skipped: steps skipped up to the end of the last epoch; None if unknown.
        notes: what the reader of a figure has to know about what is missing.
    """

    epochs: np.ndarray
    scales: np.ndarray
    rates: np.ndarray
    growths: np.ndarray
    back_offs: np.ndarray
    skipped: int | None
    notes: Sequence[str] = ()

    @property
    def headline(self) -> str:
        """One line that says how the run went."""
        count = len(self.epochs)
        if not count:
            return "Loss scale: no epoch recorded"
        steps = "" if self.skipped is None else f", {counted(self.skipped, 'skipped step')}"
        return f"Loss scale: {counted(count, 'epoch')}{steps}"


def of_history(history: Any) -> EpochRecord:
    """Reads the `History` that `fit` returns, of Keras 3 or tf_keras.

    Args:
        history: an object with `history`, a dict of lists, and `epoch`, a list of integers.

    Raises:
        ValueError: if it has no loss scales.
    """
    columns: Mapping[str, Sequence[Any]] = history.history
    prefix = _prefix(list(columns))
    values = [np.asarray(getattr(history, "epoch", ()), np.float64)]
    values += [_floats(columns.get(prefix + key, ())) for key in (KEY, "overflow_rate", *_COUNTERS)]
    return _record(values, [])


def of_csv(path: str) -> EpochRecord:
    """Reads the file of a `CSVLogger`; rows without an epoch and a loss scale are counted.

    Args:
        path: the file; the separator is a comma, a semicolon or a tabulator.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it has no loss scales.
    """
    lines = bounded_lines(path)
    header = next(lines, None) or ""
    separator = max(",;\t", key=header.count)
    names = next(csv.reader([header], delimiter=separator), [])
    prefix = _prefix(names)
    wanted = ["epoch", *(prefix + key for key in (KEY, "overflow_rate", *_COUNTERS))]
    rows, damaged = [], 0
    for cells in _cells(lines, separator):
        row = dict(zip(names, cells, strict=False))
        values = [_float(row.get(name)) for name in wanted]
        if len(cells) == len(names) and math.isfinite(values[0]) and not math.isnan(values[1]):
            rows.append(values)
        else:
            damaged += 1
    table = np.array(rows, np.float64).reshape(-1, len(wanted))
    text = f"{counted(damaged, 'row')} of the file could not be read"
    return _record(list(table.T), [text] if damaged else [])


def _cells(lines: Iterator[str | None], separator: str) -> Iterator[list[str]]:
    for line in lines:
        if line is None:
            yield []
        elif line.strip():
            yield next(csv.reader([line], delimiter=separator), [])


def _prefix(names: Sequence[str]) -> str:
    found = [name for name in names if name.endswith(KEY) and not name.startswith("val_")]
    if not found:
        raise ValueError(
            f"Expected a column whose name ends in {KEY!r}, as `LossScaleLogger` adds it to the "
            f"logs. Received: columns {[str(name)[:40] for name in names[:20]]}. Put "
            "`LossScaleLogger()` first in the list of callbacks."
        )
    return found[0].removesuffix(KEY)


def _record(values: list[np.ndarray], notes: list[str]) -> EpochRecord:
    length = len(values[1])
    epochs = values[0] if len(values[0]) == length else np.arange(length, dtype=np.float64)
    rates, growths, back_offs, skipped = (
        column if len(column) == length else np.full(length, math.nan) for column in values[2:]
    )
    total = skipped[-1] if length else math.nan
    return EpochRecord(
        epochs + 1, values[1], rates, _moved(growths, epochs), _moved(back_offs, epochs),
        int(total) if math.isfinite(total) else None, notes,
    )  # fmt: skip


def _moved(totals: np.ndarray, epochs: np.ndarray) -> np.ndarray:
    """Counts within each epoch; what came before a first epoch other than 0 is not known."""
    before = [0.0 if len(epochs) and epochs[0] == 0 else math.nan]
    return np.diff(totals, prepend=before if len(totals) else [])


def _floats(values: Sequence[Any]) -> np.ndarray:
    return np.array([_float(value) for value in values], np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
