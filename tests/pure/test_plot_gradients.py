# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from npu_keras.gradient_range import GradientRange
from npu_keras.plotting import plot_gradient_range

EXPONENTS = np.arange(-60, 11)


def report(*histograms, loss_scale=1024.0, zeros=0, not_finite=0):
    """Each histogram is a dict from exponent to count."""
    counts = np.array([[h.get(e, 0) for e in EXPONENTS] for h in histograms], np.int64)
    names = tuple(f"net/layer_{i}/kernel" for i in range(len(histograms)))
    other = [np.full(len(histograms), number) for number in (zeros, not_finite)]
    return GradientRange(names, EXPONENTS, counts.reshape(-1, len(EXPONENTS)), *other, loss_scale)


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def bars(figure):
    """Left edge, height relative to the highest, and hatch of each bar."""
    drawn = [p for container in figure.axes[0].containers for p in container]
    highest = max(abs(p.get_height()) for p in drawn)
    return {
        round(p.get_x()): (round(abs(p.get_height()) / highest, 3), (p.get_hatch() or "")[:1])
        for p in drawn
    }


def lines(figure):
    return [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_xdata()[0] < 0][:3]


def test_bars_stand_where_magnitudes_are_and_the_lost_ones_are_hatched():
    figure = plot_gradient_range(report({-35: 10, -34: 20, -10: 40, 5: 30}))
    assert bars(figure) == {
        -35: (0.25, "/"), -34: (0.5, ""), -10: (1.0, ""), 5: (0.75, "x")
    }  # fmt: skip
    assert texts(figure)[-1] == "10 % become 0\n30 % near overflow"
    assert "net/layer_0/kernel" in texts(figure)
    assert "2**10" in figure.axes[0].get_title(loc="left")


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0, 3000.0])
def test_the_window_moves_with_the_loss_scale(loss_scale):
    figure = plot_gradient_range(report({-20: 1}, loss_scale=loss_scale))
    edges = sorted(
        line.get_xdata()[0] for line in figure.axes[0].lines if len(set(line.get_xdata())) == 1
    )
    assert edges == pytest.approx([e - np.log2(loss_scale) for e in (-24, -14, 16)])
    left, right = figure.axes[0].get_xlim()
    assert left < edges[0] < edges[-1] < right
    assert texts(figure)[:4] == ["becomes 0", "fewer digits", "full precision", "infinite"]


def test_small_shares_are_not_rounded_to_nothing_and_other_elements_are_named():
    figure = plot_gradient_range(report({-50: 1, 0: 10**6}, {}, not_finite=3, zeros=5))
    assert [t for t in texts(figure) if "become " in t or "all" in t] == [
        "<0.1 % become 0\n0 % near overflow\n3 not finite",
        "all are 0",
    ]
    figure = plot_gradient_range(report({-50: 10**6, 0: 1}, {}))
    assert [t for t in texts(figure) if "become " in t or "no" in t] == [
        ">99.9 % become 0\n0 % near overflow",
        "no elements",
    ]


def test_of_many_variables_those_that_lose_most_are_shown_in_the_order_of_the_model():
    histograms = [{-50: i % 7, 0: 100} for i in range(30)]
    figure = plot_gradient_range(report(*histograms))
    shown = [int(t.split("_")[1].split("/")[0]) for t in texts(figure) if t.startswith("net")]
    assert len(shown) == 20
    assert shown == sorted(shown)
    assert {i for i in range(30) if i % 7 > 2} <= set(shown)
    assert "10 more variables lose less and are not shown" in figure.get_supxlabel()


def test_edges_that_hold_more_are_named_when_they_hold_anything():
    beyond = "the first and the last bar also hold what is beyond"
    assert beyond in plot_gradient_range(report({-60: 1})).get_supxlabel()
    assert beyond not in plot_gradient_range(report({-59: 1})).get_supxlabel()


def test_nothing_sampled():
    assert texts(plot_gradient_range(report())) == ["nothing sampled yet"]


@pytest.mark.parametrize("loss_scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_places_nothing_is_refused(loss_scale):
    with pytest.raises(ValueError, match="above 0 and finite.*report.loss_scale="):
        plot_gradient_range(report({0: 1}, loss_scale=loss_scale))


@pytest.mark.parametrize("dpi", [75, 200])
def test_nothing_is_clipped(dpi):
    figure = plot_gradient_range(report({-50: 1, 0: 10**6}, {}, not_finite=10**9))
    figure.set_dpi(dpi)
    FigureCanvasAgg(figure).draw()
    inside = figure.bbox.padded(1)
    for text in figure.axes[0].texts:
        extent = text.get_window_extent()
        assert inside.x0 <= extent.x0 <= extent.x1 <= inside.x1, text
        assert inside.y0 <= extent.y0 <= extent.y1 <= inside.y1, text
