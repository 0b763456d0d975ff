# SPDX-License-Identifier: Apache-2.0
"""Draws a run epoch by epoch, from what histories and their files know."""

from typing import TYPE_CHECKING, Any

import numpy as np

from npu_keras.epoch_record import EpochRecord
from npu_keras.plot_data import INTERVALS, is_drawable
from npu_keras.plot_steps import MOST_MARKS, MOST_POINTS, MOST_TICKS, set_scale_range
from npu_keras.plot_style import (
    BLUE,
    INK,
    MUTED,
    VERMILION,
    add_notes,
    legend_above,
    new_figure,
    number_counted,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 60
"""Up to so many epochs each has a dot."""
FOOT = 0.1
"""Height of the highest bar of skipped steps, of that of the axes."""


def draw(record: EpochRecord) -> "Figure":
    """Draws the loss scale at the end of each epoch.

    Args:
        record: the run.
    """
    figure = new_figure(3.6)
    (ax,) = figure.axes
    ax.set_title(record.headline, loc="left", fontsize=12, pad=28)
    ax.set_ylabel("loss scale (log2 axis)", fontsize=11)
    ax.set_xlabel("epoch, at its end", fontsize=11)
    ax.set_yscale("log", base=2)
    visible = is_drawable(record.scales)
    if not visible.any():
        ax.set_xticks([])
        ax.set_yticks([])
        ax.text(0.5, 0.5, "nothing recorded yet", transform=ax.transAxes, ha="center", color=MUTED)
        return figure
    first, last = record.epochs[0], record.epochs[-1]
    ax.set_xlim(first - 0.99, last + 0.5 + 0.01 * (last - first))
    number_counted(ax.xaxis, last)
    set_scale_range(ax, record.scales[visible], {})
    notes = _draw_line(ax, record, visible) + _draw_skips(ax, record) + _draw_moves(ax, record)
    legend_above(ax)
    add_notes(figure, [*notes, *record.notes])
    return figure


def _draw_line(ax: "Axes", record: EpochRecord, visible: np.ndarray) -> list[str]:
    marker = "o" if len(record.epochs) <= FEW else ""
    epochs, scales = record.epochs[visible], record.scales[visible]
    style: dict[str, Any] = {"drawstyle": "steps-post", "color": INK, "linewidth": 1.5}
    if len(epochs) <= MOST_POINTS:
        ax.plot(epochs, scales, marker=marker, markersize=3.5, label="loss scale", **style)
        return ["the scale between the ends of two epochs is not known from a history"]
    parts = np.array_split(np.arange(len(epochs)), INTERVALS)
    middles = epochs[[part[0] for part in parts]]
    low, high = ([find(scales[part]) for part in parts] for find in (np.min, np.max))
    ax.fill_between(middles, low, high, step="post", color=INK, alpha=0.25, linewidth=0)
    medians = [np.quantile(scales[part], 0.5, method="lower") for part in parts]
    ax.plot(middles, medians, label="loss scale", **style)
    return [f"loss scale: median (line) and range (shade) of every {len(parts[0]):,} epochs"]


def _draw_skips(ax: "Axes", record: EpochRecord) -> list[str]:
    rates, edges = np.nan_to_num(record.rates), np.append(record.epochs - 1, record.epochs[-1])
    if not (rates > 0).any():
        return []
    each = "an epoch"
    if len(rates) > MOST_TICKS:
        parts = np.array_split(rates, INTERVALS)
        ends = np.cumsum([0, *(len(part) for part in parts)])
        rates, edges = np.array([part.mean() for part in parts]), edges[ends]
        each = f"{len(parts[0]):,} epochs on average"
    highest = float(rates.max())
    heights = np.append(rates, 0) / highest * FOOT
    ax.fill_between(
        edges, 0, heights, step="post", linewidth=0.6, color=VERMILION, alpha=0.8,
        label="steps skipped", transform=ax.get_xaxis_transform(),
    )  # fmt: skip
    return [f"steps skipped: share of the steps of {each}, at most {highest:.1%}"]


def _draw_moves(ax: "Axes", record: EpochRecord) -> list[str]:
    grown, lowered = (np.nan_to_num(moves) > 0 for moves in (record.growths, record.back_offs))
    if np.count_nonzero(grown) + np.count_nonzero(lowered) > MOST_MARKS:
        return [
            f"{np.nansum(record.growths):,.0f} growths and {np.nansum(record.back_offs):,.0f} "
            "back-offs are too many to mark"
        ]
    _mark(ax, record, grown, 8, {"marker": "^", "color": BLUE, "label": "growth in the epoch"})
    style = {"marker": "v", "color": VERMILION, "markerfacecolor": "white"}
    _mark(ax, record, lowered, -8, {**style, "label": "back-off in the epoch"})
    return []


def _mark(
    ax: "Axes", record: EpochRecord, where: np.ndarray, points: float, style: dict[str, Any]
) -> None:
    """Above or below the line, since both can happen in one epoch."""
    from matplotlib.transforms import offset_copy

    if where.any():
        shifted = offset_copy(ax.transData, ax.get_figure(root=True), y=points, units="points")
        ax.plot(
            record.epochs[where], record.scales[where], linestyle="", markersize=6, zorder=3,
            clip_on=False, transform=shifted, **style,
        )  # fmt: skip
