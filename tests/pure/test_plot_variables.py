# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from npu_keras.events import Event
from npu_keras.plot_rows import wrapped
from npu_keras.plotting import plot_overflow_by_variable

LONG = "model/" + "a_block_with_a_long_name/" * 9 + "kernel"


class Journal:
    """What the figure reads of a journal."""

    def __init__(self, counts, skipped):
        self.overflows_by_variable = lambda: counts
        self.snapshot = lambda: SimpleNamespace(skipped_steps=skipped)


def skip(attempt, variable):
    return Event(attempt, "skip", 8.0, 8.0, 1, variable)


def bars(figure):
    return [int(bar.get_width()) for bar in figure.axes[0].patches]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_worst_first_with_shares_of_all_skipped_steps():
    figure = plot_overflow_by_variable(Journal({"a": 3, "b": 0, "c": 8}, skipped=10))
    assert bars(figure) == [8, 3]
    assert texts(figure) == ["c", "8 (80 %)", "a", "3 (30 %)"]
    assert figure.axes[0].get_title(loc="left") == "Overflows by variable, in 10 skipped steps"
    assert figure.get_supxlabel().splitlines() == [
        "1 of 3 variables never overflowed",
        "several variables can overflow in one step",
    ]


def test_events_count_the_first_variable_and_say_so():
    events = [skip(1, "a"), skip(2, "b"), skip(3, "b"), skip(4, None), Event(5, "grow", 8.0, 16.0)]
    figure = plot_overflow_by_variable(events)
    assert texts(figure)[::2] == ["b", "a", "(no variable named)"]
    assert bars(figure) == [2, 1, 1]
    assert "was the first to overflow" in figure.axes[0].get_xlabel()
    assert "events name the first variable of a step" in figure.get_supxlabel()


def test_the_rest_is_summed_only_where_a_sum_is_a_number_of_steps():
    names = [f"v{i:02}" for i in range(30)]
    events = [skip(i + 1, name) for i, name in enumerate(names)] + [skip(99, "v00")]
    figure = plot_overflow_by_variable(events)
    assert (len(bars(figure)), sum(bars(figure))) == (20, 31)
    assert texts(figure)[-2:] == ["11 more variables, together", "11 (35.5 %)"]
    figure = plot_overflow_by_variable(Journal(dict.fromkeys(names, 7), skipped=8))
    assert (len(bars(figure)), bars(figure)[-1]) == (20, 7)
    assert texts(figure)[-2:] == ["11 more variables, the worst of them", "at most 7 each"]


def test_no_overflow():
    for source in ([], Journal({"a": 0}, 0), Journal({}, 0)):
        assert texts(plot_overflow_by_variable(source)) == ["no overflow recorded"]


def test_a_long_name_is_wrapped_after_a_slash_and_loses_nothing():
    lines = wrapped(LONG).split("\n")
    assert "".join(lines) == LONG
    assert len(lines) == 3
    assert all(line.endswith("/") for line in lines[:-1])
    assert wrapped("x" * 120).split("\n") == ["x" * 106, "x" * 14]
    assert "…" in wrapped("x" * 999)
    assert wrapped("a//b") == "a//b"


@pytest.mark.parametrize("dpi", [75, 200])
def test_names_that_are_long_or_look_like_formulas_are_written_inside_the_figure(dpi):
    counts = {LONG: 9, "$x^2$/\x1b[31m": 4, "W" * 500: 1, "_{": 1}
    figure = plot_overflow_by_variable(Journal(counts, skipped=10**9))
    figure.set_dpi(dpi)
    FigureCanvasAgg(figure).draw()
    inside = figure.bbox.padded(1)
    assert texts(figure)[2] == "$x^2$/\\x1b[31m"
    for text in figure.axes[0].texts:
        extent = text.get_window_extent()
        assert inside.x0 <= extent.x0 <= extent.x1 <= inside.x1, text
        assert inside.y0 <= extent.y0 <= extent.y1 <= inside.y1, text


def test_a_history_has_no_variables():
    with pytest.raises(TypeError, match="source=namespace"):
        plot_overflow_by_variable(SimpleNamespace(history={}))
