# SPDX-License-Identifier: Apache-2.0
"""Draws magnitudes of gradients against what float16 can hold."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_keras._arguments import is_real
from npu_keras.gradient_range import NEAR_OVERFLOW_EXPONENT, SMALLEST_EXPONENT, GradientRange
from npu_keras.plot_rows import MOST_ROWS, row_figure, tops, wrapped, write_name
from npu_keras.plot_style import BLUE, INK, MUTED, VERMILION, add_notes
from npu_keras.words import scale_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NORMAL_EXPONENT, OVERFLOW_EXPONENT = -14, 16
"""Of float16: below 2**-14 digits are lost one by one, and 2**16 is infinite."""
_BARS = 0.22  # height of the highest bar, inches


def draw(report: GradientRange) -> "Figure":
    """Draws a histogram for each variable.

    Args:
        report: the counts.
    """
    scale = report.loss_scale
    if not is_real(scale) or not 0 < scale < math.inf:
        raise ValueError(
            "Expected a loss scale above 0 and finite, to place what float16 holds. Received: "
            f"report.loss_scale={report.loss_scale!r}"
        )
    chosen = _chosen(report)
    names = [wrapped(report.variables[index], width=5.6) for index in chosen]
    places, height = tops(names)
    held = f"what float16 holds at a loss scale of {scale_text(report.loss_scale)}"
    figure = row_figure(f"Gradients and {held}", 22, height, "nothing sampled yet")
    if not chosen:
        return figure
    (ax,) = figure.axes
    _draw_window(ax, report, _set_magnitudes(ax, report))
    for index, name, top in zip(chosen, names, places, strict=True):
        foot = write_name(ax, name, top)
        ax.axhspan(top, foot - 0.02, color="white", linewidth=0, zorder=1.5)  # no line through it
        _draw_row(ax, report, index, foot)
    add_notes(figure, _notes(report, len(chosen)))
    return figure


def _chosen(report: GradientRange) -> list[int]:
    lost = report.underflow() + report.near_overflow() + (report.not_finite > 0)
    worst = np.argsort(-lost, kind="stable")[:MOST_ROWS]
    return sorted(int(index) for index in worst)  # in the order of the model


def _set_magnitudes(ax: "Axes", report: GradientRange) -> float:
    """Sets the x axis, and returns log2 of the loss scale."""
    shift = math.log2(report.loss_scale)
    seen = report.exponents[report.counts.sum(axis=0) > 0]
    low, high = SMALLEST_EXPONENT - shift - 3, OVERFLOW_EXPONENT - shift + 3
    if len(seen):
        low, high = min(low, float(seen[0])), max(high, float(seen[-1]) + 1)
    ax.set_xlim(low - 0.5, high + 0.5)
    ax.set_xlabel("magnitude of the gradient, not scaled (log2 axis)", fontsize=11)
    step = next(step for step in (2, 4, 8, 16, 32) if (high - low) / step <= 14)
    ax.set_xticks(np.arange(math.ceil(low / step) * step, high + 1, step))
    ax.xaxis.set_major_formatter(lambda exponent, _: f"$2^{{{exponent:.0f}}}$")
    return shift


def _draw_window(ax: "Axes", report: GradientRange, shift: float) -> None:
    left, right = ax.get_xlim()
    zero, normal, over = (
        exponent - shift for exponent in (SMALLEST_EXPONENT, NORMAL_EXPONENT, OVERFLOW_EXPONENT)
    )
    for start, end in ((left, zero), (over, right)):
        ax.axvspan(start, end, color="#f1f1f1", linewidth=0, zorder=0)
    for edge, style in ((zero, "-"), (normal, (0, (4, 3))), (over, "-")):
        ax.axvline(edge, color=MUTED, linewidth=0.9, linestyle=style, zorder=1)
    names = ("becomes 0", "fewer digits", "full precision", "infinite")
    edges = (left, zero, normal, over, right)
    for name, start, end in zip(names, edges[:-1], edges[1:], strict=True):
        ax.text(
            (start + end) / 2, 1, name, transform=ax.get_xaxis_transform(), ha="center",
            va="bottom", fontsize=8.5, color=MUTED,
        )  # fmt: skip


def _draw_row(ax: "Axes", report: GradientRange, index: int, top: float) -> None:
    counts, foot = report.counts[index], top + _BARS
    scaled = report.exponents + math.log2(report.loss_scale)
    heights = _BARS * counts / max(counts.max(), 1)
    groups: list[tuple[np.ndarray, dict[str, Any]]] = [
        (scaled < SMALLEST_EXPONENT, {"facecolor": "white", "hatch": "/////"}),
        (scaled >= NEAR_OVERFLOW_EXPONENT, {"facecolor": "white", "hatch": "xxxxx"}),
    ]
    safe = ~(groups[0][0] | groups[1][0])
    groups.append((safe, {"facecolor": BLUE, "edgecolor": BLUE}))
    for where, style in groups:
        style = {"edgecolor": VERMILION, "linewidth": 0.5, **style}
        where = where & (counts > 0)
        ax.bar(
            report.exponents[where] + 0.5, -heights[where], width=1, bottom=foot, zorder=2, **style
        )
    ax.axhline(foot, color="#cccccc", linewidth=0.6, zorder=1)
    ax.text(
        1.01, foot - _BARS / 2, _shares(report, index), transform=ax.get_yaxis_transform(),
        va="center", fontsize=8.5, color=INK, linespacing=1.05,
    )  # fmt: skip


def _shares(report: GradientRange, index: int) -> str:
    if not report.counts[index].sum():
        return "all are 0" if report.zeros[index] else "no elements"
    low, high = (values[index] for values in (report.underflow(), report.near_overflow()))
    text = f"{_percent(low)} become 0\n{_percent(high)} near overflow"
    bad = int(report.not_finite[index])
    return f"{text}\n{bad:,} not finite" if bad else text


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1 %"
    return ">99.9 %" if 0.999 < share < 1 else f"{100 * share:.3g} %"


def _notes(report: GradientRange, shown: int) -> list[str]:
    notes = [
        "shares are of the elements that are not 0; near overflow: within a factor of 2",
        "heights are relative to the highest bar of each variable",
    ]
    hidden = len(report.variables) - shown
    if hidden:
        notes.append(f"{hidden:,} more variables lose less and are not shown")
    if report.counts[:, 0].any() or report.counts[:, -1].any():
        notes.append("the first and the last bar also hold what is beyond")
    return notes
