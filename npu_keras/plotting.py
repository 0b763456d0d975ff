# SPDX-License-Identifier: Apache-2.0
"""Figures of what the loss scale did. They need matplotlib, which `npu-keras[plot]` brings."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_keras.journal import BACK_OFF, GROW
from npu_keras.plot_data import Points, ScaleRecord, band, load, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which people with any kind of colour vision can tell apart.
INK, MUTED, BLUE, VERMILION, GREEN = "#1a1a1a", "#767676", "#0072b2", "#d55e00", "#009e73"
BOUND_IN_SIGHT = 2.0**4
"""A floor or ceiling is drawn when it is within this factor of the scales seen."""
MOST_POINTS, MOST_TICKS, MOST_MARKS = 3000, 1000, 200
"""Up to how many corners of a line, skipped steps and moves are drawn one by one."""


def plot_loss_scale(source: Any, *, losses: Sequence[float] | np.ndarray | None = None) -> "Figure":
    """Draws the loss scale over the attempted steps, and the loss under it.

    The scale is a step line on a log2 axis; skipped steps are ticks at its foot, filled triangles
    that point up are growths, hollow ones that point down are back-offs. Where there is more than
    can be told apart, the figure shows medians, ranges and shares of intervals, and says so.

    Args:
        source: a loss-scaled optimizer, a list of `npu_keras.Event`, or the path of a file that
            `LossScaleLogger(jsonl=...)` wrote.
        losses: the loss of each attempted step, the first one of step 1; skipped steps count.

    Returns:
        A `matplotlib.figure.Figure`; save it with `figure.savefig("loss_scale.png", dpi=200)`.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if `source` is something else.
        FileNotFoundError: if the file does not exist.

    Example:

    ```python
    figure = npu_keras.plotting.plot_loss_scale(model.optimizer)
    figure.savefig("loss_scale.png")
    ```
    """
    record = load(source)
    if losses is not None:
        losses = np.asarray(losses, np.float64)
        record = record.with_attempts(len(losses))
    figure = _new_figure(panels=1 if losses is None else 2)
    upper = figure.axes[0]
    _set_steps(figure, record.attempts)
    notes = _draw_scale(upper, record)
    if losses is not None:
        notes += _draw_losses(figure.axes[1], losses, record)
    notes += record.notes
    if notes:
        text = "\n".join(notes)
        figure.supxlabel(text, x=0.99, ha="right", fontsize=8.5, color=MUTED)
    return figure


def _new_figure(panels: int) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib. Install it with `pip install 'npu-keras[plot]'`."
        ) from error
    figure = Figure(figsize=(8, 3.6 if panels == 1 else 5.4), layout="constrained")
    ratios = [1.0] if panels == 1 else [1.35, 1.0]
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=ratios)
    for ax in axes[:, 0]:
        ax.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=10, color=MUTED)
    return figure


def _set_steps(figure: "Figure", last: int) -> None:
    from matplotlib.ticker import MaxNLocator

    bottom = figure.axes[-1]
    bottom.set_xlabel("attempted step (applied or skipped)", fontsize=11)
    bottom.set_xlim(0.5, max(last, 1) * 1.01 + 0.5)
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    bottom.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    if not last:
        bottom.set_xticks([])


def _draw_scale(ax: "Axes", record: ScaleRecord) -> list[str]:
    ax.set_title(record.headline, loc="left", fontsize=12, pad=28)
    ax.set_ylabel("loss scale (log2 axis)", fontsize=11)
    ax.set_yscale("log", base=2)
    line = record.line()
    if not len(line.x):
        ax.set_yticks([])
        ax.text(0.5, 0.5, "nothing recorded yet", transform=ax.transAxes, ha="center", color=MUTED)
        return []
    _set_scale_range(ax, line.y, record)
    notes = _draw_line(ax, line, INK, "loss scale", "steps-post")
    notes += _draw_skips(ax, record) + _draw_moves(ax, record)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=10,
        borderaxespad=0.2, handletextpad=0.5, columnspacing=1.6, borderpad=0.2,
    )  # fmt: skip
    return notes


def _set_scale_range(ax: "Axes", scales: np.ndarray, record: ScaleRecord) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = float(scales.min()), float(scales.max())
    sight = low / BOUND_IN_SIGHT, high * BOUND_IN_SIGHT
    for name, bound in (("floor", record.floor), ("ceiling", record.ceiling)):
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


def _draw_losses(ax: "Axes", losses: np.ndarray, record: ScaleRecord) -> list[str]:
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


def save(figure: "Figure", path: str | Path, dpi: int = 200) -> None:
    """Writes a figure to a file, making its folder if needed.

    Args:
        figure: the figure.
        path: the file; its ending decides the format.
        dpi: pixels per inch; the figures here are 8 inches wide.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
