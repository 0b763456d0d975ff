# SPDX-License-Identifier: Apache-2.0
"""What magnitudes of gradients say about the loss scale; imports no framework."""

from typing import Any, NamedTuple

import numpy as np

from npu_keras.gradient_range import GradientRange
from npu_keras.words import scale_text

NEAR_OVERFLOW = 0.001
"""Above this share of elements from 2**15 on, a variable is too near to an overflow."""

UNDERFLOW = 0.01
"""Above this share of elements below 2**-24, a variable loses too much of its gradient."""

SCALES = range(-14, 33)
"""The powers of two that are considered: 2**32 is where Ascend scripts begin."""


class FittingScales(NamedTuple):
    """The loss scales that suit gradients.

    Attributes:
        lowest: the smallest power of two at which no variable loses too much, or None.
        highest: the largest power of two at which no variable is too near to an overflow, or None.
        needs_high: the variable that asks for `lowest`.
        needs_low: the variable that forbids more than `highest`.
    """

    lowest: float | None
    highest: float | None
    needs_high: str
    needs_low: str


def fitting_scales(measured: GradientRange) -> FittingScales:
    """Returns the loss scales at which float16 holds nearly all gradients.

    Args:
        measured: the magnitudes; at least one variable.
    """
    scales = [2.0**k for k in SCALES]
    lost = np.stack([measured.underflow(scale) for scale in scales])
    near = np.stack([measured.near_overflow(scale) for scale in scales])
    low = [scale for scale, row in zip(scales, lost, strict=True) if (row <= UNDERFLOW).all()]
    high = [scale for scale, row in zip(scales, near, strict=True) if (row < NEAR_OVERFLOW).all()]
    return FittingScales(
        min(low, default=None),
        max(high, default=None),
        measured.variables[int((lost > UNDERFLOW).sum(axis=0).argmax())],
        measured.variables[int((near >= NEAR_OVERFLOW).sum(axis=0).argmax())],
    )


def records(measured: GradientRange) -> list[dict[str, Any]]:
    """Returns one dict per variable.

    Args:
        measured: the magnitudes.

    Returns:
        Dicts with `variable`; `elements`, how many were counted; `zeros` and `not_finite` among
        them; `underflow` and `near_overflow`, shares of those that are neither, at `loss_scale`;
        `lowest_exponent`, `median_exponent` and `highest_exponent`, base 2, None without any.
    """
    lost, near = measured.underflow(), measured.near_overflow()
    rows = []
    for i, name in enumerate(measured.variables):
        counts, zeros, bad = measured.counts[i], measured.zeros[i], measured.not_finite[i]
        rows.append(
            {
                "variable": name,
                "elements": int(counts.sum() + zeros + bad),
                "zeros": int(zeros),
                "not_finite": int(bad),
                "underflow": float(lost[i]),
                "near_overflow": float(near[i]),
                **_exponents(measured.exponents, counts),
                "loss_scale": measured.loss_scale,
            }
        )
    return rows


def summary(measured: GradientRange) -> str:
    """Returns a few lines: the scales that would do, and the variables that stand out.

    Args:
        measured: the magnitudes.
    """
    if not measured.counts.any():
        if measured.not_finite.any():
            return (
                f"All {int(measured.not_finite.sum()):,} elements other than 0 were infinite or "
                "NaN, which no loss scale can cure: look at the data and the forward pass."
            )
        return "No gradient other than 0 has been counted."
    fitting = fitting_scales(measured)
    lines = [f"Loss scale {scale_text(measured.loss_scale)}. {_verdict(fitting)}"]
    for row in records(measured):
        lines += [f"  {row['variable']}: {text}" for text in _trouble(row)]
    return "\n".join(lines)


def _exponents(exponents: np.ndarray, counts: np.ndarray) -> dict[str, int | None]:
    present = np.flatnonzero(counts)
    names = ("lowest_exponent", "median_exponent", "highest_exponent")
    if not len(present):
        return dict.fromkeys(names)
    middle = np.searchsorted(counts.cumsum(), (counts.sum() + 1) // 2)
    chosen = (present[0], middle, present[-1])
    return {name: int(exponents[i]) for name, i in zip(names, chosen, strict=True)}


def _verdict(fitting: FittingScales) -> str:
    low, high = fitting.lowest, fitting.highest
    if low is None:
        return f"No scale up to 2**32 is high enough for {fitting.needs_high} in float16."
    if high is None:
        return f"No scale is low enough for {fitting.needs_low} in float16."
    if low > high:
        return (
            f"No scale suits all gradients in float16: {fitting.needs_high} needs "
            f"{scale_text(low)} or more, {fitting.needs_low} {scale_text(high)} or less. Compute "
            "the layer of one of them in float32 (dtype='float32')."
        )
    text = f"In float16, scales from {scale_text(low)} to {scale_text(high)} suit these gradients"
    if low > 2.0 ** SCALES[0]:
        text += f"; lower ones lose those of {fitting.needs_high}"
    if high < 2.0 ** SCALES[-1]:
        text += f"; higher ones bring those of {fitting.needs_low} near an overflow"
    return f"{text}."


def _trouble(row: dict[str, Any]) -> list[str]:
    found = []
    if row["underflow"] > UNDERFLOW:
        found.append(f"{row['underflow']:.1%} of its elements become 0")
    if row["near_overflow"] >= NEAR_OVERFLOW:
        found.append(f"{row['near_overflow']:.1%} of its elements are near an overflow")
    if row["not_finite"]:
        found.append(f"{row['not_finite']:,} of {row['elements']:,} elements were not finite")
    if 2 * row["zeros"] > row["elements"]:
        found.append(f"{row['zeros'] / row['elements']:.1%} of its elements were exactly 0")
    return found
