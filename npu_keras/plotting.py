# SPDX-License-Identifier: Apache-2.0
"""Figures of what the loss scale did. They need matplotlib, which `npu-keras[plot]` brings."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_keras import plot_epochs, plot_gradients, plot_steps, plot_variables
from npu_keras._arguments import float32_number
from npu_keras._arguments import path as as_path
from npu_keras.epoch_record import EpochRecord
from npu_keras.gradient_range import GradientRange, require_matching
from npu_keras.plot_sources import load, load_counts
from npu_keras.plot_style import add_notes, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_loss_scale(source: Any, *, losses: Sequence[float] | np.ndarray | None = None) -> "Figure":
    """Draws the loss scale over the attempted steps, and the loss under it.

    The scale is a step line on a log2 axis; skipped steps are ticks at its foot, filled triangles
    that point up are growths, hollow ones that point down are back-offs. Where there is more than
    can be told apart, the figure shows medians, ranges and shares of intervals, and says so.

    Args:
        source: a loss-scaled optimizer, its `journal`, a list of `npu_keras.Event`, the path of a
            file that `LossScaleLogger(jsonl=...)` wrote; or a `History`, or the path of a
            `CSVLogger`'s file (ending in `.csv`), which know only the end of each epoch.
        losses: the loss of each attempted step, the first one of step 1; skipped steps count.

    Returns:
        A `matplotlib.figure.Figure`; save it with `figure.savefig("loss_scale.png", dpi=200)`.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if `source` is something else.
        ValueError: if a history has no loss scales, or has epochs where `losses` needs steps; for
            losses that are no list of numbers.
        FileNotFoundError: if the file does not exist.

    Example:

    ```python
    figure = npu_keras.plotting.plot_loss_scale(model.optimizer)
    figure.savefig("loss_scale.png")
    ```
    """
    record = load(source)
    if isinstance(record, EpochRecord):
        if losses is not None:
            raise ValueError(
                "`losses` has a loss for each step, and this source an entry for each epoch. Give "
                f"an optimizer, events or their file. Received: source={source!r}"
            )
        return plot_epochs.draw(record)
    if losses is not None:
        losses = _losses(losses)
        record = record.with_attempts(len(losses))
    figure = new_figure(3.6) if losses is None else new_figure(5.4, (1.35, 1.0))
    plot_steps.set_steps(figure.axes[-1], record.attempts)
    notes = plot_steps.draw_scale(figure.axes[0], record)
    if losses is not None:
        notes += plot_steps.draw_losses(figure.axes[1], losses, record)
    add_notes(figure, [*notes, *record.notes])
    return figure


def plot_overflow_by_variable(source: Any) -> "Figure":
    """Draws in how many skipped steps the gradient of each variable overflowed, worst first.

    An optimizer counts every variable of a skipped step. Events name the first one only, in the
    order of the trainable variables, and the figure says so. Beyond 20 variables the last row
    stands for the rest.

    Args:
        source: a loss-scaled optimizer, its `journal`, a list of `npu_keras.Event`, or the path of
            a file that `LossScaleLogger(jsonl=...)` wrote.

    Returns:
        A `matplotlib.figure.Figure`, as high as it has rows.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if `source` is something else.
        FileNotFoundError: if the file does not exist.

    Example:

    ```python
    figure = npu_keras.plotting.plot_overflow_by_variable(model.optimizer)
    figure.savefig("overflows.png")
    ```
    """
    return plot_variables.draw(load_counts(source))


def plot_gradient_range(report: GradientRange) -> "Figure":
    """Draws how large gradients are against what float16 can hold at the loss scale of the reading.

    Each variable has a histogram over log2 of the magnitude. Bars that are hatched upwards become
    0 when they are scaled and stored in float16, bars hatched crosswise are within a factor of 2 of
    an overflow; the shares of both stand beside. Beyond 20 variables those are shown that lose
    most.

    Args:
        report: the counts, from `callbacks.DistributionReport` or made by hand.

    Returns:
        A `matplotlib.figure.Figure`, as high as it has rows.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: for what is no `GradientRange`.
        ValueError: if the loss scale is not a positive number, or the counts do not match.

    Example:

    ```python
    report = npu_keras.gradient_range.GradientRange(
        ("kernel",), np.arange(-30, 1), counts, zeros, not_finite, loss_scale=1024.0
    )
    figure = npu_keras.plotting.plot_gradient_range(report)
    ```
    """
    require_matching(report)
    return plot_gradients.draw(report)


def save(figure: "Figure", path: str | Path, dpi: float = 200) -> None:
    """Writes a figure to a file, making its folder if needed.

    Args:
        figure: the figure.
        path: the file; its ending decides the format.
        dpi: pixels per inch; the figures here are 8 inches wide.

    Raises:
        TypeError: for what is no figure, path or number.
        ValueError: for `dpi` below 1, or an ending that matplotlib does not know.
    """
    if not hasattr(figure, "savefig"):
        raise TypeError(f"`figure` must be a matplotlib figure. Received: figure={figure!r}")
    dpi = float32_number("dpi", dpi, low=1.0)
    file = as_path("path", path)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=dpi)


def _losses(losses: Any) -> np.ndarray:
    try:
        values = np.asarray(losses, np.float64)
    except (TypeError, ValueError):
        values = np.zeros((0, 0))
    if values.ndim != 1:
        raise ValueError(
            "`losses` must be a list of numbers, one for each attempted step. "
            f"Received: losses={losses!r:.200}"
        )
    return values
