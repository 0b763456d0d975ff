# SPDX-License-Identifier: Apache-2.0
"""Figures with a row for each variable, whose name stands above it and so has the whole width."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npu_keras.plot_style import INK, MUTED, WIDTH, new_figure
from npu_keras.words import name_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 20
"""More rows are not read."""
ROW = 0.46
"""Height of a row with a name of one line, in inches."""
LINE = 0.15
"""Height of another line of a name, in inches."""
_FONT_SIZE, _ADVANCE = 8.5, 0.602  # points; width of a character of DejaVu Sans Mono, relative
_MARGIN = 0.4  # inches


def wrapped(name: str, width: float = WIDTH) -> str:
    """Returns a name in lines that fit, broken after a slash where there is one.

    Args:
        name: the path of a variable; very long ones lose their middle.
        width: of the figure, in inches.
    """
    longest = int((width - _MARGIN) * 72 / (_FONT_SIZE * _ADVANCE))
    lines = [""]
    for part in name_text(name, longest=3 * longest).split("/"):
        pieces = textwrap.wrap(part, longest, drop_whitespace=False) or [""]
        for number, piece in enumerate(pieces):
            joined = piece if number or not lines[-1] else f"{lines[-1]}/{piece}"
            if number or len(joined) > longest:
                lines[-1] += "" if number else "/"
                lines.append(piece)
            else:
                lines[-1] = joined
    return "\n".join(lines)


def tops(names: Sequence[str]) -> tuple[list[float], float]:
    """Returns the y of the top of each row in inches from the top, and the height of all.

    Args:
        names: the wrapped names.
    """
    y, found = 0.0, []
    for name in names:
        found.append(y)
        y += ROW + LINE * name.count("\n")
    return found, y


def row_figure(title: str, pad: float, height: float, empty: str) -> "Figure":
    """Returns a figure for rows, whose y is in inches and grows downwards.

    Args:
        title: its title.
        pad: space below the title, in points.
        height: of all rows, in inches.
        empty: what to say when there is no row.
    """
    inches = max(height, 0.8)
    figure = new_figure(inches + 1.4)
    (ax,) = figure.axes
    ax.set_title(title, loc="left", fontsize=12, pad=pad)
    ax.grid(axis="y", visible=False)
    ax.set_yticks([])
    ax.set_ylim(inches, 0)
    if not height:
        ax.set_xticks([])
        ax.text(0.5, 0.5, empty, transform=ax.transAxes, ha="center", color=MUTED)
    return figure


def write_name(ax: "Axes", name: str, top: float) -> float:
    """Writes the name of a row, and returns the y below it.

    Args:
        ax: axes whose y is in inches and grows downwards.
        name: the wrapped name.
        top: y of the top of the row.
    """
    ax.annotate(
        name, (0, top + 0.04), xycoords=ax.get_yaxis_transform(), xytext=(3, 0),
        textcoords="offset points", va="top", fontsize=_FONT_SIZE, family="monospace", color=INK,
        parse_math=False, linespacing=1.1, in_layout=False,
    )  # fmt: skip
    return top + 0.22 + LINE * name.count("\n")
