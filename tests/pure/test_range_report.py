# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_keras.gradient_range import GradientRange
from npu_keras.range_report import fitting_scales, records, summary

EXPONENTS = np.arange(-96, 32)


def measured(loss_scale=1.0, zeros=(), not_finite=(), **counts):
    """Counts by exponent: `a={-3: 5}` is five elements of 2**-3 or a little more in variable a."""
    table = np.zeros((len(counts), len(EXPONENTS)), np.int64)
    for row, by_exponent in enumerate(counts.values()):
        for exponent, count in by_exponent.items():
            table[row, exponent - EXPONENTS[0]] = count
    zeros, not_finite = (np.array([*x, *[0] * (len(counts) - len(x))]) for x in (zeros, not_finite))
    return GradientRange(tuple(counts), EXPONENTS, table, zeros, not_finite, loss_scale)


def test_shares_are_those_at_a_scale():
    gradients = measured(2.0**4, a={-30: 1, -28: 1, -20: 2}, b={11: 1, 10: 3}, c={})
    assert gradients.underflow().tolist() == [0.25, 0.0, 0.0]
    assert gradients.underflow(1.0).tolist() == [0.5, 0.0, 0.0]
    assert gradients.near_overflow().tolist() == [0.0, 0.25, 0.0]
    assert gradients.near_overflow(2.0**5).tolist() == [0.0, 1.0, 0.0]


@given(
    st.floats(2.0**-20, 2.0**20, allow_subnormal=False),
    st.integers(-14, 30),
)
def test_shares_are_what_float16_does(gradient, k):
    scale = np.float64(2.0) ** k
    exponent = int(np.frexp(gradient)[1]) - 1
    counted = measured(scale, a={exponent: 1})
    scaled = gradient * scale
    assert counted.underflow()[0] == (scaled < 2.0**-24)
    assert counted.near_overflow()[0] == (scaled >= 2.0**15)


def test_the_highest_scale_keeps_a_factor_of_two_and_the_lowest_loses_a_hundredth():
    gradients = measured(a={-10: 10_000, -5: 9}, b={-40: 1, -30: 99})
    fitting = fitting_scales(gradients)
    assert (fitting.lowest, fitting.highest) == (2.0**6, 2.0**24)  # -30 + 6 = -24, -10 + 24 < 15
    assert (fitting.needs_high, fitting.needs_low) == ("b", "a")
    assert fitting_scales(measured(a={-10: 900, -5: 1})).highest == 2.0**19


def test_records_are_one_per_variable():
    gradients = measured(8.0, zeros=[3], not_finite=[2], a={-30: 1, -2: 3, 14: 1}, b={})
    first, second = records(gradients)
    assert first == {
        "variable": "a",
        "elements": 10,
        "zeros": 3,
        "not_finite": 2,
        "underflow": 0.2,
        "near_overflow": 0.2,
        "lowest_exponent": -30,
        "median_exponent": -2,
        "highest_exponent": 14,
        "loss_scale": 8.0,
    }
    assert second["elements"] == 0
    assert second["median_exponent"] is None


@pytest.mark.parametrize(
    "gradients, text",
    [
        (
            measured(2.0**20, a={-10: 100}, b={-30: 100}),
            "Loss scale 2**20. In float16, scales from 64 to 2**24 suit these gradients; lower "
            "ones lose those of b; higher ones bring those of a near an overflow.",
        ),
        (
            measured(1.0, a={2: 100}, b={-45: 100}),
            "Loss scale 1. No scale suits all gradients in float16: b needs 2**21 or more, a "
            "2**12 or less. Compute the layer of one of them in float32 (dtype='float32').\n"
            "  b: 100.0% of its elements become 0",
        ),
        (
            measured(2.0**20, zeros=[300], not_finite=[1], a={-10: 99, -4: 1}),
            "Loss scale 2**20. In float16, scales from 2**-14 to 2**18 suit these gradients; "
            "higher ones bring those of a near an overflow.\n"
            "  a: 1.0% of its elements are near an overflow\n"
            "  a: 1 of 401 elements were not finite\n"
            "  a: 74.8% of its elements were exactly 0",
        ),
        (
            measured(1.0, a={-90: 1}),
            "Loss scale 1. No scale up to 2**32 is high enough for a in float16.\n"
            "  a: 100.0% of its elements become 0",
        ),
        (
            measured(1.0, a={30: 1}),
            "Loss scale 1. No scale is low enough for a in float16.\n"
            "  a: 100.0% of its elements are near an overflow",
        ),
        (measured(a={}), "No gradient other than 0 has been counted."),
    ],
)
def test_the_summary_says_which_scale_and_which_variable(gradients, text):
    assert summary(gradients) == text


def test_gradients_that_are_all_not_finite_are_not_called_zero():
    text = summary(measured(not_finite=(1024,), a={}))
    assert text.startswith("All 1,024 elements other than 0 were infinite or NaN")
