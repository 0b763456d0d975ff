# SPDX-License-Identifier: Apache-2.0
"""One line of a file of events: an event with sound values, or nothing."""

import json
from collections.abc import Callable
from typing import Any

from npu_keras.events import KINDS, Event

_LARGEST = 2**63 - 1  # of the counters in the optimizer
_TINY, _HUGE = 2.0**-149, 2.0**128  # of float32
_LONGEST_NAME = 4096  # characters; of a path through the layers, some dozen
_SCALE_LIMITS = (0.0, float("inf"))  # which a manager of the user's own may reach


def parsed(line: str) -> Event | None:
    """Returns the event on a line, or None if a value is missing or cannot be one of an event.

    Args:
        line: a JSON object; fields that `Event` does not have are passed over.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    known = {name: fields[name] for name in Event._fields if name in fields}
    needed = known.keys() >= {"attempt", "kind", "scale_before", "scale_after"}
    if not needed or not all(_CHECKS[name](value) for name, value in known.items()):
        return None
    scales = {name: float(known[name]) for name in ("scale_before", "scale_after")}
    return Event(**{**known, **scales})


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _is_scale(value: Any) -> bool:
    number = isinstance(value, float) or _is_count(value)
    return number and (value in _SCALE_LIMITS or _TINY <= value <= _HUGE)  # not NaN


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "attempt": lambda value: _is_count(value) and value > 0,
    "kind": lambda value: isinstance(value, str) and value in KINDS,
    "scale_before": _is_scale,
    "scale_after": _is_scale,
    "variable": lambda value: value is None or _is_name(value),
    "forward": lambda value: isinstance(value, bool),
    "rank": lambda value: value is None or _is_count(value),
    **dict.fromkeys(("bad_variables", "infs", "nans", "bad_steps"), _is_count),
}
