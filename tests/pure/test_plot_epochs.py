# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from npu_keras.plotting import plot_loss_scale


def history(count, **columns):
    steps = np.arange(count)
    known = {
        "loss_scale": 2.0 ** (15 + steps % 3),
        "overflow_rate": np.where(steps % 3 == 2, 0.2, 0.0),
        "scale_growths": np.cumsum(steps % 3 > 0),
        "scale_backoffs": np.cumsum((steps % 3 == 0) & (steps > 0)),
        "skipped_steps": np.cumsum(steps % 3 == 2),
    }
    table = {name: list(column) for name, column in {**known, **columns}.items()}
    return SimpleNamespace(history=table, epoch=list(range(count)))


def artists(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_each_epoch_is_a_corner_of_the_line_and_moves_are_marked_at_its_end():
    figure = plot_loss_scale(history(5))
    lines = artists(figure)
    assert np.column_stack(lines["loss scale"].get_data()).tolist() == [
        [1, 2**15], [2, 2**16], [3, 2**17], [4, 2**15], [5, 2**16]
    ]  # fmt: skip
    assert lines["loss scale"].get_drawstyle() == "steps-post"
    assert lines["growth in the epoch"].get_xdata().tolist() == [2, 3, 5]
    assert lines["back-off in the epoch"].get_xdata().tolist() == [4]
    assert lines["growth in the epoch"].get_marker() != lines["back-off in the epoch"].get_marker()
    assert figure.axes[0].get_xlabel() == "epoch, at its end"
    assert figure.get_supxlabel().splitlines() == [
        "the scale between the ends of two epochs is not known from a history",
        "steps skipped: share of the steps of an epoch, at most 20.0%",
    ]


def test_many_epochs_are_condensed_and_it_is_said():
    figure = plot_loss_scale(history(30_000))
    assert figure.get_supxlabel().splitlines() == [
        "loss scale: median (line) and range (shade) of every 75 epochs",
        "steps skipped: share of the steps of 75 epochs on average, at most 6.7%",
        "20,000 growths and 9,999 back-offs are too many to mark",
    ]
    assert sum(len(line.get_xdata()) for line in figure.axes[0].lines) <= 400


def test_no_epoch_yet():
    (ax,) = plot_loss_scale(history(0)).axes
    assert [text.get_text() for text in ax.texts] == ["nothing recorded yet"]
    assert ax.get_title(loc="left") == "Loss scale: no epoch recorded"


def test_losses_of_steps_do_not_fit_to_epochs():
    with pytest.raises(ValueError, match="an entry for each epoch"):
        plot_loss_scale(history(2), losses=[1.0, 2.0])
