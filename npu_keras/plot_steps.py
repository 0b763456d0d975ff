# SPDX-License-Identifier: Apache-2.0
"""Draws a run step by step: the loss scale, skipped steps, moves and losses."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_keras.events import BACK_OFF, GROW
from npu_keras.plot_data import Points, ScaleRecord, band, shares
from npu_keras.plot_style import BLUE, GREEN, INK, MUTED, VERMILION, legend_above, number_counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOUND_IN_SIGHT = 2.0**4
"""A floor or ceiling is drawn when it is within this factor of the scales seen."""
MOST_POINTS, MOST_TICKS, MOST_MARKS = 3000, 1000, 200
"""Up to how many corners of a line, skipped steps and moves are drawn one by one."""


def set_steps(ax: "Axes", last: int) -> None:
    """Makes the x axis one of attempted steps.

    Args:
        ax: the lowest axes.
        last: the last step.
    """
    ax.set_xlabel("attempted step (applied or skipped)", fontsize=11)
    ax.set_xlim(0.5, max(last, 1) * 1.01 + 0.5)
    number_counted(ax.xaxis, last)
    if not last:
        ax.set_xticks([])


def draw_scale(ax: "Axes", record: ScaleRecord) -> list[str]:
    """Draws the loss scale, its moves and the skipped steps; returns notes.

    Args:
        ax: the axes.
        record: the run.
    """
    ax.set_title(record.headline, loc="left", fontsize=12, pad=28)
    ax.set_ylabel("loss scale (log2 axis)", fontsize=11)
    ax.set_yscale("log", base=2)
    line = record.line()
    if not len(line.x):
        ax.set_yticks([])
        ax.text(0.5, 0.5, "nothing recorded yet", transform=ax.transAxes, ha="center", color=MUTED)
        return []
    set_scale_range(ax, line.y, {"floor": record.floor, "ceiling": record.ceiling})
    notes = _draw_line(ax, line, INK, "loss scale", "steps-post")
    notes += _draw_skips(ax, record) + _draw_moves(ax, record)
    legend_above(ax)
    return notes


def set_scale_range(ax: "Axes", scales: np.ndarray, bounds: Mapping[str, float | None]) -> None:
    """Makes the y axis one of loss scales, and draws bounds that are in sight.

    Args:
        ax: the axes.
        scales: the scales to show, above 0 and finite.
        bounds: floor and ceiling by name, None where there is none.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = float(scales.min()), float(scales.max())
    sight = low / BOUND_IN_SIGHT, high * BOUND_IN_SIGHT
    for name, bound in bounds.items():
        if bound and sight[0] <= bound <= sight[1]:
            low, high = min(low, bound), max(high, bound)
            ax.axhline(bound, color=MUTED, linewidth=0.9, linestyle=(0, (6, 3)))
            ax.annotate(
                name, (1, bound), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                textcoords="offset points", ha="right", fontsize=9, color=MUTED,
            )  # fmt: skip
    octaves = max(np.log2(high / low), 2.0)
    # Room below for the ticks of skipped steps.
    ax.set_ylim(low * 2 ** (-0.18 * octaves), high * 2 ** (0.1 * octaves))
    ax.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())


def _draw_line(ax: "Axes", line: Points, color: str, label: str, drawstyle: str) -> list[str]:
    if len(line.x) <= MOST_POINTS:
        ax.plot(line.x, line.y, drawstyle=drawstyle, color=color, linewidth=1.5, label=label)
        return []
    drawn = band(line)
    style: dict[str, Any] = {"step": "post", "color": color, "linewidth": 0}
    low, high = np.append(drawn.low, drawn.low[-1]), np.append(drawn.high, drawn.high[-1])
    ax.fill_between(drawn.edges, low, high, alpha=0.25, **style)
    ax.stairs(drawn.middle, drawn.edges, baseline=None, color=color, linewidth=1.2, label=label)
    width = (drawn.edges[1] - drawn.edges[0]).round()
    return [f"{label}: median (line) and range (shade) of every {width:,.0f} steps"]


def _draw_skips(ax: "Axes", record: ScaleRecord) -> list[str]:
    steps = record.skips().x
    foot: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "color": VERMILION}
    if len(steps) > MOST_TICKS:
        edges, share = shares(steps, record.attempts)
        heights = np.append(share, 0) / share.max() * 0.1
        ax.fill_between(edges, 0, heights, step="post", linewidth=0, label="steps skipped", **foot)
        return [f"steps skipped: share of steps, at most {share.max():.0%} at one place"]
    if len(steps):
        at_foot = np.full(len(steps), 0.04)
        ax.plot(steps, at_foot, "|", markersize=9, label="skipped step", **foot)
    return []


def _draw_moves(ax: "Axes", record: ScaleRecord) -> list[str]:
    growths, back_offs = record.moves(GROW), record.moves(BACK_OFF)
    if len(growths.x) + len(back_offs.x) > MOST_MARKS:
        counts = f"{len(growths.x):,} growths and {len(back_offs.x):,} back-offs"
        return [f"{counts} are too many to mark"]
    style: dict[str, Any] = {"linestyle": "", "markersize": 6, "clip_on": False, "zorder": 3}
    if len(growths.x):
        ax.plot(growths.x, growths.y, marker="^", color=BLUE, label="growth", **style)
    if len(back_offs.x):
        style |= {"marker": "v", "color": VERMILION, "markerfacecolor": "white"}
        ax.plot(back_offs.x, back_offs.y, label="back-off", **style)
    return []


def draw_losses(ax: "Axes", losses: np.ndarray, record: ScaleRecord) -> list[str]:
    """Draws the loss of each attempted step; returns notes.

    Args:
        ax: the axes.
        losses: float64 array, the first one of step 1.
        record: the run.
    """
    steps = np.arange(1, len(losses) + 1)
    finite = np.isfinite(losses)
    ax.set_ylabel("loss of the batch", fontsize=11)
    notes = []
    if finite.any():
        # A short line shows where a loss is missing, a condensed one cannot.
        chosen = finite if len(losses) > MOST_POINTS else slice(None)
        notes = _draw_line(ax, Points(steps[chosen], losses[chosen]), GREEN, "loss", "default")
    skipped = record.skips().x.astype(int)
    skipped = skipped[skipped <= len(losses)]
    if 0 < len(skipped) <= MOST_MARKS:
        ax.plot(skipped, losses[skipped - 1], "x", color=VERMILION, markersize=4, label="skipped")
    if finite.any():
        ax.legend(loc="upper right", frameon=False, fontsize=10)
    missing = int(np.count_nonzero(~finite))
    return notes + ([f"{missing:,} losses are not finite and are left out"] if missing else [])
