# SPDX-License-Identifier: Apache-2.0
"""Draws in how many skipped steps each variable overflowed."""

from typing import TYPE_CHECKING, NamedTuple

from npu_keras.plot_rows import MOST_ROWS, row_figure, tops, wrapped, write_name
from npu_keras.plot_sources import OverflowCounts
from npu_keras.plot_style import INK, VERMILION, add_notes, number_counted
from npu_keras.words import counted, share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.17  # inches


class Row(NamedTuple):
    """A bar: its name, its length in steps, the text at its end, and whether it is of several."""

    name: str
    steps: int
    text: str
    several: bool = False


def rows_of(counts: OverflowCounts) -> list[Row]:
    """Returns the rows of the figure, worst first, the rest in one.

    Args:
        counts: the steps of each variable.
    """
    worst = sorted(((n, name) for name, n in counts.counts.items() if n), key=_worst_first)
    rows = [Row(wrapped(name), n, _text(n, counts.skipped)) for n, name in worst]
    if counts.unnamed:
        text = _text(counts.unnamed, counts.skipped)
        rows.append(Row("(no variable named)", counts.unnamed, text, several=True))
    if len(rows) <= MOST_ROWS:
        return rows
    shown, rest = rows[: MOST_ROWS - 1], rows[MOST_ROWS - 1 :]
    total, most = sum(row.steps for row in rest), max(row.steps for row in rest)
    name = f"{len(rest):,} more variables"
    if counts.first_only:
        return [*shown, Row(f"{name}, together", total, _text(total, counts.skipped), several=True)]
    # Steps of several variables overlap: their sum is no number of steps.
    return [*shown, Row(f"{name}, the worst of them", most, f"at most {most:,} each", several=True)]


def _worst_first(pair: tuple[int, str]) -> tuple[int, str]:
    return -pair[0], pair[1]


def _text(steps: int, skipped: int) -> str:
    return f"{steps:,} ({share_text(steps, skipped)})"


def draw(counts: OverflowCounts) -> "Figure":
    """Draws the bars.

    Args:
        counts: the steps of each variable.
    """
    rows = rows_of(counts)
    places, height = tops([row.name for row in rows])
    title = f"Overflows by variable, in {counted(counts.skipped, 'skipped step')}"
    figure = row_figure(title, 8, height, "no overflow recorded")
    if not rows:
        return figure
    (ax,) = figure.axes
    what = "was the first to overflow" if counts.first_only else "overflowed"
    ax.set_xlabel(f"skipped steps in which the variable {what} (share of all)", fontsize=11)
    for row, top in zip(rows, places, strict=True):
        _bar(ax, row, write_name(ax, row.name, top))
    longest = max(row.steps for row in rows)
    ax.set_xlim(0, longest * 1.25)
    number_counted(ax.xaxis, longest)
    add_notes(figure, [*_explained(counts), *counts.notes])
    return figure


def _bar(ax: "Axes", row: Row, y: float) -> None:
    face = "white" if row.several else VERMILION
    hatch = "////" if row.several else None
    (bar,) = ax.barh(y + _BAR / 2, row.steps, height=_BAR, edgecolor=VERMILION)
    bar.set(facecolor=face, hatch=hatch, linewidth=0.8)
    ax.annotate(
        row.text, (row.steps, y + _BAR / 2), xytext=(4, 0), textcoords="offset points",
        va="center_baseline", fontsize=9, color=INK,
    )  # fmt: skip


def _explained(counts: OverflowCounts) -> list[str]:
    if counts.first_only:
        return [
            "events name the first variable of a step, in the order of the model; the optimizer "
            "counts all"
        ]
    clean = sum(not n for n in counts.counts.values())
    notes = [f"{clean:,} of {len(counts.counts):,} variables never overflowed"] if clean else []
    overlapping = sum(counts.counts.values()) > counts.skipped
    return notes + (["several variables can overflow in one step"] if overlapping else [])
