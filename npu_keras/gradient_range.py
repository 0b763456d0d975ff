# SPDX-License-Identifier: Apache-2.0
"""How large the gradients of each variable are, as counts of powers of two; imports no framework.

float16 holds magnitudes from 2**-24 to 65504. A loss scale moves all gradients up by log2 of it, so
that what becomes 0 or overflows at any scale can be counted from one histogram.
"""

from typing import NamedTuple

import numpy as np

SMALLEST_EXPONENT = -24
"""2**-24 is the smallest positive number of float16; what is below half of it becomes 0."""

NEAR_OVERFLOW_EXPONENT = 15
"""From 2**15 on, the last power of two of float16, a factor of two leads to an overflow."""


class GradientRange(NamedTuple):
    """Magnitudes of unscaled gradients.

    Attributes:
        variables: paths of the variables.
        exponents: int array, the consecutive exponents that are counted, ascending.
        counts: int64 array `(variables, exponents)`; exponent e counts the elements with
            2**e <= abs(gradient) < 2**(e + 1). The first and the last also count what is beyond.
        zeros: int64 array `(variables,)`, elements that are 0.
        not_finite: int64 array `(variables,)`, elements that are infinite or NaN.
        loss_scale: the loss scale at the time of reading.
    """

    variables: tuple[str, ...]
    exponents: np.ndarray
    counts: np.ndarray
    zeros: np.ndarray
    not_finite: np.ndarray
    loss_scale: float

    def underflow(self, loss_scale: float | None = None) -> np.ndarray:
        """Returns the share of each variable's elements other than 0 that float16 cannot hold.

        Args:
            loss_scale: the scale they are multiplied by; by default that of the reading.

        Returns:
            float64 array `(variables,)`, 0 to 1; 0 where nothing was counted.
        """
        return self._share(self._scaled(loss_scale) < SMALLEST_EXPONENT)

    def near_overflow(self, loss_scale: float | None = None) -> np.ndarray:
        """Returns the share of each variable's elements other than 0 that are 2**15 or more.

        Args:
            loss_scale: the scale they are multiplied by; by default that of the reading.

        Returns:
            float64 array `(variables,)`, 0 to 1; 0 where nothing was counted.
        """
        return self._share(self._scaled(loss_scale) >= NEAR_OVERFLOW_EXPONENT)

    def _scaled(self, loss_scale: float | None) -> np.ndarray:
        scale = self.loss_scale if loss_scale is None else loss_scale
        return self.exponents + np.log2(scale)

    def _share(self, chosen: np.ndarray) -> np.ndarray:
        counted = self.counts.sum(axis=1)
        return self.counts[:, chosen].sum(axis=1) / np.maximum(counted, 1)


def require_matching(report: GradientRange) -> None:
    """Refuses what is no `GradientRange`, or one made by hand whose parts do not go together.

    Args:
        report: the counts.

    Raises:
        TypeError: if it is something else.
        ValueError: if the arrays have other shapes than variables and exponents ask for.
    """
    if not isinstance(report, GradientRange):
        raise TypeError(f"`report` must be a `GradientRange`. Received: report={report!r}")
    rows, columns = len(report.variables), len(report.exponents)
    expected = ((rows, columns), (rows,), (rows,))
    shapes = tuple(np.shape(part) for part in (report.counts, report.zeros, report.not_finite))
    if shapes != expected:
        raise ValueError(
            f"Expected counts, zeros and not_finite of the shapes {expected} for {rows} variables "
            f"and {columns} exponents. Received: {shapes}"
        )
