# SPDX-License-Identifier: Apache-2.0
"""What the figures share: their colours, their frame and the notes at their foot."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which people with any kind of colour vision can tell apart.
INK, MUTED, BLUE, VERMILION, GREEN = "#1a1a1a", "#767676", "#0072b2", "#d55e00", "#009e73"
WIDTH = 8.0
"""Of every figure, in inches."""


def new_figure(height: float, ratios: Sequence[float] = (1.0,)) -> "Figure":
    """Returns a figure with panels one below the other.

    Args:
        height: in inches.
        ratios: heights of the panels, relative to each other.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib. Install it with `pip install 'npu-keras[plot]'`."
        ) from error
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)
    for ax in axes[:, 0]:
        ax.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=10, color=MUTED)
    return figure


def add_notes(figure: "Figure", notes: Sequence[str]) -> None:
    """Writes notes below a figure.

    Args:
        figure: the figure.
        notes: a line each.
    """
    if notes:
        text = "\n".join(line for note in notes for line in textwrap.wrap(note, 110))
        figure.supxlabel(text, x=0.99, ha="right", fontsize=8.5, color=MUTED, parse_math=False)


def number_counted(axis: Any, last: float) -> None:
    """Puts whole numbers on an axis that counts something.

    Args:
        axis: the axis.
        last: the largest number.
    """
    from matplotlib.ticker import MaxNLocator

    bins = 8 if last < 1e6 else 5
    axis.set_major_locator(MaxNLocator(nbins=bins, steps=[1, 2, 5, 10], integer=True))
    axis.set_major_formatter(lambda number, _: f"{number:,.0f}" if last < 1e11 else f"{number:g}")


def legend_above(ax: "Axes") -> None:
    """Puts the legend between the title and the axes, where it covers nothing.

    Args:
        ax: the axes.
    """
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=10,
        borderaxespad=0.2, handletextpad=0.5, columnspacing=1.6, borderpad=0.2,
    )  # fmt: skip
