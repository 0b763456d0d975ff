# SPDX-License-Identifier: Apache-2.0
import logging
import sys
import time
import types

import pytest
from hosts import model

from npu_keras.callbacks import LossScalePlot, loss_scale_plot

PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def compiled():
    return model()


@pytest.fixture
def notebook(monkeypatch):
    """A notebook, as far as a callback can see; returns the pictures that it shows."""
    shown = []

    class Image:
        def __init__(self, data, format):
            assert (data[:6], format) == (PNG, "png")

    class Handle:
        def update(self, image):
            shown.append("update")

    def display(image, display_id):
        assert isinstance(image, Image)
        assert display_id is True
        shown.append("new")
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.version_info = (8, 24)  # which matplotlib looks at
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.Image, ipython.display.display = Image, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return shown


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still, but for a second a picture where it is told so."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def began(compiled, callback):
    callback.set_model(compiled)
    callback.on_train_begin()
    return callback


def lines(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "npu_keras"]


def test_one_picture_is_updated_in_place(compiled, notebook, clock):
    callback = began(compiled, LossScalePlot())
    assert notebook == ["new"]
    for now in (1.9, 2.0, 3.9, 4.0):
        clock[0] = now
        callback.on_train_batch_end(0)
    assert notebook == ["new", "update", "update"]
    callback.on_train_end()
    assert notebook == ["new"] + ["update"] * 3
    began(compiled, callback)
    assert notebook[-1] == "new"  # another training has another picture


def test_pictures_take_no_more_than_2_percent(compiled, notebook, clock, monkeypatch):
    callback = LossScalePlot(every_s=1)
    spent = [0.0]

    def render():
        clock[0] += 0.25
        spent[0] += 0.25
        return PNG

    monkeypatch.setattr(callback, "_render", render)
    began(compiled, callback)
    begin, spent[0] = clock[0], 0.0
    for _ in range(2000):
        clock[0] += 0.05
        callback.on_train_batch_end(0)
        assert spent[0] <= 0.02 * (clock[0] - begin) + 1e-9
    assert spent[0] == pytest.approx(0.02 * (clock[0] - begin), abs=0.25)


def test_outside_of_a_notebook_one_line_says_so(compiled, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "npu_keras")
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    callback = began(compiled, LossScalePlot())
    callback.on_train_batch_end(0)
    callback.on_train_end()
    assert lines(caplog) == ["LossScalePlot draws nothing: this is no notebook."]


def test_without_matplotlib_one_line_says_so(compiled, notebook, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "npu_keras")
    monkeypatch.setattr(loss_scale_plot.importlib.util, "find_spec", lambda name: None)
    began(compiled, LossScalePlot()).on_train_end()
    assert notebook == []
    (line,) = lines(caplog)
    assert line.startswith("LossScalePlot draws nothing: matplotlib is not installed")


def test_other_ranks_draw_nothing(compiled, notebook, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "npu_keras")
    monkeypatch.setattr(loss_scale_plot, "speaks_for_all", lambda optimizer: False)
    began(compiled, LossScalePlot()).on_train_end()
    assert notebook == lines(caplog) == []
