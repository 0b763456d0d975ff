# SPDX-License-Identifier: Apache-2.0
"""Split strategies: which gradients travel together in one collective.

A strategy is an immutable value; `plan(items)` turns the gradients of a model, given in the order
they are sent, into buckets. Gradients of different dtypes never share a bucket. The buckets of a
plan are ordered by the moment their last gradient is ready, so that they can be sent as they come.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

MAX_SEGMENTS = 8


class Item(NamedTuple):
    """One gradient to be sent: `index` is the position of its variable, `size_bytes` its bytes."""

    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    name: str
    dtype: str
    size_bytes: int


class Bucket(NamedTuple):
    """Gradients of one dtype sent as one: `indices` are variable positions, in sending order."""

    dtype: str
    indices: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    """The buckets of one step, in the order they are sent, and the items they were made from."""

    buckets: tuple[Bucket, ...]
    items: tuple[Item, ...]

    def describe(self) -> str:
        """Returns the plan as a table: segment, dtype, first and last variable, count, bytes."""
        names = {item.index: item.name for item in self.items}
        rows = [("segment", "dtype", "variables", "count", "bytes")]
        for number, (dtype, indices, size) in enumerate(self.buckets):
            ends = dict.fromkeys((names[indices[0]], names[indices[-1]]))
            variables, count = " .. ".join(ends), str(len(indices))
            rows.append((str(number), dtype, variables, count, _human(size)))
        total = sum(bucket.size_bytes for bucket in self.buckets)
        rows.append(("total", "", "", str(len(self.items)), _human(total)))
        a, b, c, d, e = (max(map(len, column)) for column in zip(*rows, strict=True))
        form = f"{{:<{a}}}  {{:<{b}}}  {{:<{c}}}  {{:>{d}}}  {{:>{e}}}"
        return "\n".join(form.format(*row) for row in rows)


@runtime_checkable
class SplitStrategy(Protocol):
    """Anything that turns items, given in sending order, into a `Plan`."""

    def plan(self, items: Sequence[Item]) -> Plan:
        """Returns the plan for `items`, which are given in the order they are sent."""


@dataclass(frozen=True)
class SplitByBytes:
    """Fills buckets in sending order up to a number of bytes, per dtype.

    A gradient larger than the bucket gets a bucket of its own.

    Args:
        bucket_bytes: Integer of at least 1, the most bytes a bucket of several gradients holds.

    Raises:
        ValueError: If `bucket_bytes` is not an integer of at least 1.

    Example:
    >>> items = [Item(1, "b", "float32", 8), Item(0, "w", "float32", 32)]
    >>> [bucket.indices for bucket in SplitByBytes(32).plan(items).buckets]
    [(1,), (0,)]
    """

    bucket_bytes: int

    def __post_init__(self) -> None:
        if not is_int(self.bucket_bytes) or self.bucket_bytes < 1:
            raise ValueError(
                "A bucket size must be a whole number of bytes, 1 or more. "
                f"Received: bucket_bytes={self.bucket_bytes!r}"
            )

    def plan(self, items: Sequence[Item]) -> Plan:
        """Returns the plan for `items`, which are given in the order they are sent."""
        groups: list[list[int]] = []
        for same_dtype in _by_dtype(items, range(len(items))):
            filled = math.inf
            for position in same_dtype:
                filled += items[position].size_bytes
                if filled > self.bucket_bytes:
                    groups.append([])
                    filled = items[position].size_bytes
                groups[-1].append(position)
        return _make_plan(items, groups)


@dataclass(frozen=True)
class SplitByIndex:
    """Cuts after the given gradients, counted from 0 in sending order over all gradients.

    `[20, 100, 159]` makes the segments 0 to 20, 21 to 100 and 101 to 159. A segment with several
    dtypes is cut further, one bucket per dtype. The rules are those of
    `hccl.split.api.set_split_strategy_by_idx` in Ascend's documentation.

    Args:
        indices: One to eight integers, strictly ascending, from 0 to 2**32 - 1. The last one must
            be the number of gradients minus one, which `plan` checks.

    Raises:
        ValueError: If `indices` breaks one of these rules.
    """

    indices: Sequence[int]

    def __post_init__(self) -> None:
        values = _as_segments("indices", self.indices)
        if not all(is_int(value) and 0 <= value < 2**32 for value in values):
            raise ValueError(
                f"Split indices must be integers from 0 to 2**32 - 1. Received: indices={values!r}"
            )
        if any(low >= high for low, high in pairwise(values)):
            raise ValueError(
                f"Split indices must be strictly ascending. Received: indices={values!r}"
            )
        object.__setattr__(self, "indices", tuple(int(value) for value in values))

    def plan(self, items: Sequence[Item]) -> Plan:
        """Returns the plan for `items`, which are given in the order they are sent.

        Raises:
            ValueError: If the last index is not `len(items) - 1`.
        """
        if self.indices[-1] != len(items) - 1:
            raise ValueError(
                f"The last split index must be that of the last gradient: {len(items)} gradients "
                f"are sent, so {len(items) - 1} was expected. Received: indices={self.indices!r}. "
                "Change the last index, or split by percentage or by bytes"
            )
        starts = (0, *(index + 1 for index in self.indices[:-1]))
        spans = [range(a, b + 1) for a, b in zip(starts, self.indices, strict=True)]
        return _make_plan(items, [group for span in spans for group in _by_dtype(items, span)])


@dataclass(frozen=True)
class SplitByPercentage:
    """Cuts the bytes of each dtype into shares given in percent.

    Each cut falls on the gradient boundary nearest to the share asked for so far (the earlier of
    two equally near ones), so what one segment has too much the next has less; every segment
    takes at least one gradient, and the cutting stops when none is left. A share of 0 makes no
    segment. The rules are those of `hccl.split.api.set_split_strategy_by_size` in Ascend's
    documentation, but the sum may differ from 100 by rounding.

    Args:
        percentages: One to eight integers or floats of at least 0 with a sum of 100 (relative
            tolerance 1e-6).

    Raises:
        ValueError: If `percentages` breaks one of these rules.
    """

    percentages: Sequence[float]

    def __post_init__(self) -> None:
        values = _as_segments("percentages", self.percentages)
        if not all(_is_share(value) for value in values):
            raise ValueError(
                f"Split percentages must be numbers of at least 0. Received: percentages={values!r}"
            )
        if not math.isclose(sum(values), 100.0, rel_tol=1e-6):
            raise ValueError(
                "Split percentages must sum to 100. "
                f"Received: percentages={values!r}, sum {sum(values)!r}"
            )
        plain = tuple(int(value) if is_int(value) else float(value) for value in values)
        object.__setattr__(self, "percentages", plain)

    def plan(self, items: Sequence[Item]) -> Plan:
        """Returns the plan for `items`, which are given in the order they are sent."""
        groups = []
        for positions in _by_dtype(items, range(len(items))):
            start = 0
            for stop in self._stops([items[position].size_bytes for position in positions]):
                groups.append(positions[start:stop])
                start = stop
        return _make_plan(items, groups)

    def _stops(self, sizes: Sequence[int]) -> list[int]:
        shares = [share for share in self.percentages if share > 0]
        reached = list(accumulate(sizes))
        stops = [0]
        for number in range(1, len(shares)):
            target = sum(shares[:number]) * reached[-1]
            rest = range(stops[-1], len(sizes))
            if rest:
                stops.append(1 + min(rest, key=lambda i: abs(100 * reached[i] - target)))
        # The last share takes what is left: rounding in the sum must not lose a gradient.
        return stops[1:] if stops[-1] == len(sizes) else [*stops[1:], len(sizes)]


@dataclass(frozen=True)
class SplitHcclDefault:
    """Two segments of 96.54 % and 3.46 % of the bytes: the default of Ascend's HCCL.

    The ratio was tuned there for ResNet-50; it is meant for the `hccl` engine only.
    """

    def plan(self, items: Sequence[Item]) -> Plan:
        """Returns the plan for `items`, which are given in the order they are sent."""
        return SplitByPercentage((96.54, 3.46)).plan(items)


def is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer, of Python or numpy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and float(value) >= 0


def _as_segments(name: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= MAX_SEGMENTS:
        raise ValueError(
            f"A split must be a list of 1 to {MAX_SEGMENTS} numbers. Received: {name}={values!r}"
        )
    return tuple(values)


def _by_dtype(items: Sequence[Item], positions: Iterable[int]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for position in positions:
        groups.setdefault(items[position].dtype, []).append(position)
    return list(groups.values())


def _make_plan(items: Sequence[Item], groups: Iterable[Sequence[int]]) -> Plan:
    buckets = []
    for group in sorted(groups, key=lambda positions: positions[-1]):
        members = [items[position] for position in group]
        size = sum(item.size_bytes for item in members)
        buckets.append(Bucket(members[0].dtype, tuple(item.index for item in members), size))
    return Plan(tuple(buckets), tuple(items))


def _human(size: float) -> str:
    if size < 1024:
        return f"{size} B"
    power = min(int(math.log2(size)) // 10, 4)
    return f"{size / 1024**power:.1f} {'KMGT'[power - 1]}iB"
