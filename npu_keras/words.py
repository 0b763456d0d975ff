# SPDX-License-Identifier: Apache-2.0
"""How scales, steps and names of variables are written."""

import math
from collections.abc import Sequence


def scale_text(scale: float) -> str:
    """Returns a loss scale as people write it: `"2**16"`, `"512"`, `"3.355e+06"`.

    Args:
        scale: the loss scale.
    """
    mantissa, exponent = math.frexp(scale)
    if mantissa == 0.5 and abs(exponent - 1) >= 10:
        return f"2**{exponent - 1}"
    return f"{scale:.4g}"


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun: `"1 step"`, `"2,000 steps"`.

    Args:
        count: how many.
        noun: what, in the singular.
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def share_text(part: int, whole: int) -> str:
    """Returns a share in percent that is never rounded to all or nothing: `"2.5 %"`, `"<0.1 %"`.

    Args:
        part: how many.
        whole: of how many.
    """
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1 %"
    if part < whole and percent > 99.9:
        return ">99.9 %"
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.3g} %"


def steps_text(attempts: Sequence[int], limit: int = 4) -> str:
    """Returns step numbers in ranges: `"1-32, 57 and 3 more"`.

    Args:
        attempts: ascending step numbers.
        limit: how many ranges are written out.
    """
    ranges: list[list[int]] = []
    for attempt in attempts:
        if ranges and attempt == ranges[-1][1] + 1:
            ranges[-1][1] = attempt
        else:
            ranges.append([attempt, attempt])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges[:limit])
    rest = sum(b - a + 1 for a, b in ranges[limit:])
    return f"{shown} and {rest} more" if rest else shown


def name_text(name: str, longest: int = 160) -> str:
    """Returns a name that is safe to print: one line, no control characters, not endless.

    Args:
        name: the path of a variable, from a source that nobody vouches for.
        longest: in characters; a longer name loses its middle.
    """
    kept = name
    if len(name) > longest:
        half = (longest - 1) // 2
        kept = f"{name[:half]}…{name[-half:]}"
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
    return "".join(shown)
