# SPDX-License-Identifier: Apache-2.0
"""Checks of numeric arguments, with errors that name the argument and the value."""

import difflib
import inspect
import numbers
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

FLOAT32_MAX = float(np.finfo(np.float32).max)
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
INT32_MAX = int(np.iinfo(np.int32).max)


def is_real(value: Any) -> bool:
    """Whether a value is a real number, of Python or numpy, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a value is an integer, of Python or numpy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


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
    if not is_real(value):
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


def flag(name: str, value: Any) -> bool:
    """Return `value` as a bool, if it is one, or 0 or 1 as command lines give.

    Anything else, such as the string `"False"`, would be taken for True.

    Args:
        name: Name of the argument, for the error.
        value: Any object.

    Raises:
        TypeError: If `value` is something else.
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}")


def path(name: str, value: Any) -> Path:
    """Return `value` as a path.

    Args:
        name: Name of the argument, for the error.
        value: Any object.

    Raises:
        TypeError: If `value` is no string or path.
        ValueError: If it is empty.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"`{name}` must be a path. Received: {name}={value!r}")
    if not os.fspath(value):
        raise ValueError(f"`{name}` must be a path, not empty. Received: {name}={value!r}")
    return Path(value)


def require_known(cls: type, given: Iterable[str]) -> None:
    """Refuse keyword arguments that a class does not have, naming the one that was meant.

    Args:
        cls: The class that is being constructed.
        given: Names of the keyword arguments.

    Raises:
        TypeError: If there is no such argument.
    """
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.name != "self"]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            raise TypeError(
                f"{cls.__name__} has no argument `{name}`.{hint} Its arguments are {known}."
            )


def step_count(name: str, value: Any) -> int:
    """Return `value` as a Python int, if it lies between 1 and the largest int32.

    Args:
        name: Name of the argument, for the error.
        value: A Python or numpy integer.

    Raises:
        TypeError: If `value` is not a number.
        ValueError: If it is not an integer or out of bounds.
    """
    if not is_real(value):
        raise TypeError(f"`{name}` must be an integer. Received: {name}={value!r}")
    if not (is_whole(value) and 1 <= int(value) <= INT32_MAX):
        raise ValueError(
            f"`{name}` must be an integer between 1 and {INT32_MAX}. Received: {name}={value!r}"
        )
    return int(value)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return float("inf")
