# SPDX-License-Identifier: Apache-2.0
"""Checks of numeric arguments, with errors that name the argument and the value."""

import numbers
from typing import Any

import numpy as np

FLOAT32_MAX = float(np.finfo(np.float32).max)
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
INT32_MAX = int(np.iinfo(np.int32).max)


def float32_number(
    name: str,
    value: Any,
    low: float = SMALLEST_NORMAL,
    high: float = FLOAT32_MAX,
    *,
    inclusive: bool = True,
    hint: str = "",
) -> float:
    """Return `value` as a Python float, if it lies between two bounds once it is a float32.

    Args:
        name: Name of the argument, for the error.
        value: Any real number but a bool.
        low: Lower bound. Whatever it is, numbers below 2**-126 are refused: most devices flush
            them to zero.
        high: Upper bound. Whatever it is, numbers that are infinite in float32 are refused.
        inclusive: Whether the bounds themselves are allowed.
        hint: Sentence that tells how to change the bounds, for the error.

    Returns:
        The value, not rounded to float32.

    Raises:
        TypeError: If `value` is not a real number.
        ValueError: If it is out of bounds or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number. Received: {name}={value!r}")
    number = _to_float(value)
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.float32(number)
    inside = low <= rounded <= high if inclusive else low < rounded < high
    if not (inside and SMALLEST_NORMAL <= rounded <= FLOAT32_MAX):
        ends = "included" if inclusive else "excluded"
        raise ValueError(
            f"`{name}` must be a finite float32 between {low} and {high}, both {ends}. {hint} "
            f"Received: {name}={value!r}".replace("  ", " ")
        )
    return number


def step_count(name: str, value: Any) -> int:
    """Return `value` as a Python int, if it lies between 1 and the largest int32.

    Args:
        name: Name of the argument, for the error.
        value: A Python or numpy integer.

    Raises:
        TypeError: If `value` is not a number.
        ValueError: If it is not an integer or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be an integer. Received: {name}={value!r}")
    if not (isinstance(value, numbers.Integral) and 1 <= int(value) <= INT32_MAX):
        raise ValueError(
            f"`{name}` must be an integer between 1 and {INT32_MAX}. Received: {name}={value!r}"
        )
    return int(value)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return float("inf")
