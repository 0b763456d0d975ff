# SPDX-License-Identifier: Apache-2.0
import json
import sys

import keras
import numpy as np
import pytest

import npu_keras
from npu_keras.plot_data import Points, band, shares
from npu_keras.plotting import plot_loss_scale, plot_overflow_by_variable, save

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def event(attempt, kind, before, after):
    return npu_keras.Event(attempt, kind, float(before), float(after), 1, "net/dense/kernel")


EVENTS = [
    event(1, "skip", 2**16, 2**16),
    event(2, "back off", 2**16, 2**15),
    event(6, "grow", 2**15, 2**16),
    event(9, "skip", 2**16, 2**16),
]


def many(attempts):
    """Two overflows, a back-off, eight good steps, a growth, and so on."""
    events = []
    for start in range(1, attempts - 10, 11):
        events += [event(start, "skip", 2**16, 2**16), event(start + 1, "back off", 2**16, 2**15)]
        events += [event(start + 10, "grow", 2**15, 2**16)]
    return events


def artists(ax):
    return {line.get_label(): line for line in ax.lines}


def points(line):
    return np.column_stack(line.get_data()).tolist()


def test_the_scale_is_a_step_line_that_changes_between_two_steps():
    (ax,) = plot_loss_scale(EVENTS).axes
    line = artists(ax)["loss scale"]
    assert line.get_drawstyle() == "steps-post"
    assert points(line) == [[0.5, 2**16], [2.5, 2**15], [6.5, 2**16], [9.5, 2**16]]
    assert (ax.get_yscale(), ax.yaxis.get_transform().base) == ("log", 2)


def test_marks_are_where_things_happened_and_differ_in_shape():
    lines = artists(plot_loss_scale(EVENTS).axes[0])
    assert lines["skipped step"].get_xdata().tolist() == [1, 2, 9]
    assert points(lines["growth"]) == [[6.5, 2**16]]
    assert points(lines["back-off"]) == [[2.5, 2**15]]
    assert lines["growth"].get_marker() == "^"
    assert lines["back-off"].get_marker() == "v"
    assert lines["back-off"].get_markerfacecolor() == "white"


def test_labels_say_what_the_axes_are():
    upper, lower = plot_loss_scale(EVENTS, losses=np.ones(10)).axes
    assert upper.get_ylabel() == "loss scale (log2 axis)"
    assert lower.get_ylabel() == "loss of the batch"
    assert lower.get_xlabel() == "attempted step (applied or skipped)"
    assert upper.get_xlim() == lower.get_xlim()


def test_the_headline_claims_only_what_is_known():
    def headline(*args, **kwargs):
        return plot_loss_scale(*args, **kwargs).axes[0].get_title(loc="left")

    assert headline(EVENTS) == "Loss scale: 3 of the first 9 steps skipped"
    assert headline(EVENTS, losses=np.ones(30)) == "Loss scale: 3 of 30 steps skipped (10.0%)"
    assert headline([]) == "Loss scale: no step recorded"


def test_losses_are_drawn_step_by_step_with_the_skipped_ones_marked():
    losses = np.linspace(3, 1, 10)
    lines = artists(plot_loss_scale(EVENTS, losses=losses).axes[1])
    assert points(lines["loss"]) == [[step, losses[step - 1]] for step in range(1, 11)]
    assert points(lines["skipped"]) == [[step, losses[step - 1]] for step in (1, 2, 9)]


def test_losses_that_are_not_finite_are_left_out_and_counted():
    figure = plot_loss_scale(EVENTS, losses=[np.inf, np.nan, 2.0, 1.5, 1.0])
    assert figure.get_supxlabel() == "2 losses are not finite and are left out"
    assert np.nanmax(artists(figure.axes[1])["loss"].get_ydata()[2:]) == 2.0


def test_floor_and_ceiling_are_drawn_when_in_sight():
    def bounds(scale, **limits):
        manager = npu_keras.ExponentialUpdateLossScaleManager(scale, 20, **limits)
        optimizer = npu_keras.NPUOptimizer(keras.optimizers.SGD(), manager, is_loss_scale=True)
        optimizer.attempted_steps.assign(10)
        ax = plot_loss_scale(optimizer).axes[0]
        assert points(artists(ax)["loss scale"]) == [[0.5, scale], [10.5, scale]]
        low, high = ax.get_ylim()
        return {text.get_text(): text.xy[1] for text in ax.texts if low <= text.xy[1] <= high}

    assert bounds(4.0) == {"floor": 1.0}
    assert bounds(8.0, max_loss_scale=16.0) == {"floor": 1.0, "ceiling": 16.0}
    assert bounds(2.0**16) == {}


def test_an_optimizer_and_the_file_of_the_same_run_give_the_same_line(tmp_path):
    path = tmp_path / "events.jsonl"
    manager = npu_keras.ExponentialUpdateLossScaleManager(2**15, 2, 1, decr_ratio=0.5)
    optimizer = npu_keras.NPUOptimizer(keras.optimizers.SGD(1e-3), manager, is_loss_scale=True)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, loss="mse")
    x = np.ones((4, 2), np.float32)
    x[1] = np.inf
    logger = npu_keras.callbacks.LossScaleLogger(jsonl=path, verbose=0)
    callbacks = [logger, keras.callbacks.CSVLogger(tmp_path / "history.csv")]
    y = np.ones((4, 1))
    history = model.fit(x, y, 1, 3, shuffle=False, verbose=0, callbacks=callbacks)
    sources = (optimizer, str(path), path, optimizer.journal)
    lines = [artists(plot_loss_scale(source).axes[0]) for source in sources]
    assert points(lines[0]["loss scale"])[:-1] == points(lines[1]["loss scale"])[:-1]
    assert points(lines[0]["loss scale"]) == points(lines[3]["loss scale"])
    assert points(lines[1]["loss scale"]) == points(lines[2]["loss scale"])
    assert points(lines[0]["loss scale"])[:3] == [[0.5, 2**15], [2.5, 2**14], [4.5, 2**15]]
    assert lines[0]["skipped step"].get_xdata().tolist() == [2, 6, 10]
    for source in (history, tmp_path / "history.csv"):
        (ax,) = plot_loss_scale(source).axes
        assert points(artists(ax)["loss scale"]) == [[1, 2**15], [2, 2**15], [3, 2**15]]
        assert ax.get_title(loc="left") == "Loss scale: 3 epochs, 3 skipped steps"
    figures = [plot_overflow_by_variable(s) for s in (optimizer, optimizer.journal, path)]
    bars = [[bar.get_width() for bar in figure.axes[0].patches] for figure in figures]
    assert bars == [[3, 3], [3, 3], [3]]


def test_events_the_optimizer_no_longer_has_are_named():
    manager = npu_keras.FixedLossScaleManager(8)
    optimizer = npu_keras.NPUOptimizer(keras.optimizers.SGD(), manager, is_loss_scale=True)
    optimizer.build([keras.Variable(np.ones(1))])
    state = {"attempted_steps": 700, "skipped_steps": 600, "event_count": 600}
    for variable in optimizer.variables:
        if variable.name in state:
            variable.assign(state[variable.name])
        elif variable.name == "event_integers":
            rows = np.zeros(variable.shape, np.int64)
            rows[:, 0] = np.roll(np.arange(176, 688), 88)  # the ring has gone round once
            variable.assign(rows)
        elif variable.name == "event_scales":
            variable.assign(np.full(variable.shape, 8.0))
    figure = plot_loss_scale(optimizer)
    assert figure.get_supxlabel() == (
        "the optimizer keeps the last 512 events; 88 earlier ones are not drawn"
    )
    assert points(artists(figure.axes[0])["loss scale"])[0] == [175.5, 8.0]


def test_damaged_lines_of_a_file_are_named(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("garbage\n" + "".join(json.dumps(e._asdict()) + "\n" for e in EVENTS))
    assert plot_loss_scale(path).get_supxlabel() == "line 1 of the file is damaged and left out"


@pytest.mark.parametrize("attempts", [33, 330, 330_000])
def test_any_number_of_events_is_drawn_in_full_or_said_not_to_be(attempts):
    events = many(attempts)
    figure = plot_loss_scale(events, losses=np.linspace(2, 1, attempts))
    lines, note = artists(figure.axes[0]), figure.get_supxlabel()
    if attempts < 1000:
        assert note == ""
        assert len(lines["skipped step"].get_xdata()) == 2 * len(lines["growth"].get_xdata())
        assert len(lines["growth"].get_xdata()) == sum(e.kind == "grow" for e in events)
        return
    assert note.splitlines() == [
        "loss scale: median (line) and range (shade) of every 825 steps",
        "steps skipped: share of steps, at most 18% at one place",
        "29,999 growths and 29,999 back-offs are too many to mark",
        "loss: median (line) and range (shade) of every 825 steps",
    ]
    drawn = sum(len(line.get_xdata()) for ax in figure.axes for line in ax.lines)
    assert drawn < 5000


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("dpi", [75, 200])
def test_nothing_is_clipped_at_any_width(tmp_path, count, dpi):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = plot_loss_scale(EVENTS[:count], losses=np.ones(10) * 1e6)
    canvas = FigureCanvasAgg(figure)
    save(figure, tmp_path / "folder" / "figure.png", dpi=dpi)
    figure.set_dpi(dpi)
    canvas.draw()
    inside = figure.bbox.padded(1)
    for ax in figure.axes:
        labels = [ax.xaxis.label, ax.yaxis.label, ax._left_title]
        for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            ticks = axis.get_major_ticks()
            labels += [t.label1 for t in ticks if limits[0] <= t.get_loc() <= limits[1]]
        for label in (label for label in labels if label.get_visible() and label.get_text()):
            extent = label.get_window_extent()
            assert inside.x0 <= extent.x0 <= extent.x1 <= inside.x1, label
            assert inside.y0 <= extent.y0 <= extent.y1 <= inside.y1, label
    assert (tmp_path / "folder" / "figure.png").stat().st_size > 5000


def test_a_scale_without_a_logarithm_is_left_out():
    events = [event(3, "back off", 2, 1), event(5, "back off", 1, 0), event(8, "grow", np.inf, 4)]
    (ax,) = plot_loss_scale(events).axes
    assert points(artists(ax)["loss scale"]) == [[0.5, 2], [3.5, 1], [8.5, 4], [8.5, 4]]


def test_another_source_is_refused():
    with pytest.raises(TypeError, match="`source` must be a loss-scaled optimizer.*source=3"):
        plot_loss_scale(3)
    with pytest.raises(FileNotFoundError):
        plot_loss_scale("nowhere.jsonl")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'npu-keras\[plot\]'"):
        plot_loss_scale(EVENTS)


def test_pyplot_is_not_touched():
    sys.modules.pop("matplotlib.pyplot", None)
    plot_loss_scale(EVENTS)
    assert "matplotlib.pyplot" not in sys.modules


def test_a_band_keeps_every_extreme():
    y = np.ones(10_000)
    y[[7, 5000, 9999]] = 5.0, -3.0, 8.0
    drawn = band(Points(np.arange(10_000.0), y), 100)
    assert (drawn.high.max(), drawn.low.min(), len(drawn.middle)) == (8.0, -3.0, 100)
    assert np.flatnonzero(drawn.high > 1).tolist() == [0, 99]
    assert np.flatnonzero(drawn.low < 1).tolist() == [50]
    assert (drawn.middle == 1).all()


def test_a_band_carries_a_value_through_intervals_without_corners():
    drawn = band(Points(np.array([0.0, 55.0, 100.0]), np.array([4.0, 2.0, 2.0])), 10)
    assert drawn.low.tolist() == [4.0] * 5 + [2.0] * 5
    assert drawn.high.tolist() == [4.0] * 6 + [2.0] * 4


def test_shares_of_intervals():
    edges, share = shares(np.array([1, 2, 3, 10]), last=20, intervals=4)
    assert edges.tolist() == [0.5, 5.5, 10.5, 15.5, 20.5]
    assert share.tolist() == [0.6, 0.2, 0.0, 0.0]
