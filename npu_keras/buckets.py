# SPDX-License-Identifier: Apache-2.0
"""Planning without a framework: who sends what together, and who owns what.

The one place to import planning from: the split strategies, what a user may write for one
(`parse_split`), the process-wide settings under Ascend's names, and the division of variables
among ranks for weight-update sharding (`fair_division`).
"""

from collections.abc import Sequence

from npu_keras.split_strategies import (
    Bucket,
    Item,
    Plan,
    SplitByBytes,
    SplitByIndex,
    SplitByPercentage,
    SplitHcclDefault,
    SplitStrategy,
    is_int,
)

__all__ = [
    "Bucket",
    "Item",
    "Plan",
    "SplitByBytes",
    "SplitByIndex",
    "SplitByPercentage",
    "SplitHcclDefault",
    "SplitStrategy",
    "clear_split_strategy",
    "fair_division",
    "parse_split",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
    "split_strategy",
]

WORLD_GROUP = "hccl_world_group"

_by_idx: dict[str, SplitByIndex] = {}
_by_size: dict[str, SplitByPercentage] = {}


def parse_split(split: object) -> SplitStrategy | None:
    """Returns the strategy that a user's `split` argument stands for.

    A list is read as indices when it is a valid `SplitByIndex`, as percentages when it is a valid
    `SplitByPercentage`. A list that is both, such as `[10, 90]`, is refused rather than guessed
    at; `[10.0, 90.0]` is percentages, since indices are integers.

    Args:
        split: None, a number of bytes, a list of indices (`[20, 100, 159]`), a list of percentages
            (`[60, 20, 20]`), or a strategy.

    Returns:
        A strategy, or None for None (the engine's own default).

    Raises:
        ValueError: If `split` is none of these, or a list that can be read both ways.

    Example:

    >>> parse_split([60, 20, 20])
    SplitByPercentage(percentages=(60, 20, 20))
    """
    if split is None:
        return None
    # A class has the attribute `plan` too, but cannot plan anything.
    if isinstance(split, SplitStrategy) and not isinstance(split, type):
        return split
    if is_int(split):
        return SplitByBytes(split)
    if isinstance(split, list | tuple):
        return _parse_list(split)
    raise ValueError(
        "`split` must be None, a number of bytes, a list of indices, a list of percentages or a "
        f"split strategy. Received: split={split!r} of type {type(split).__name__}"
    )


def set_split_strategy_by_idx(
    idxList: Sequence[int],
    group: str = WORLD_GROUP,
) -> None:
    """Makes `SplitByIndex(idxList)` the split of this process for `group`.

    A split by size set for the same group goes before it. Names and rules are those of
    `hccl.split.api` in Ascend's documentation.

    Args:
        idxList: One to eight strictly ascending integers from 0 to 2**32 - 1, the last one being
            the number of gradients minus one.
        group: Name of the communication group, 1 to 127 characters.

    Raises:
        ValueError: If an argument breaks these rules; the setting is then left as it was.
    """
    _by_idx[_checked_group(group)] = SplitByIndex(idxList)


def set_split_strategy_by_size(
    dataSizeList: Sequence[float],
    group: str = WORLD_GROUP,
) -> None:
    """Makes `SplitByPercentage(dataSizeList)` the split of this process for `group`.

    It goes before a split by index set for the same group. Names and rules are those of
    `hccl.split.api` in Ascend's documentation.

    Args:
        dataSizeList: One to eight numbers of at least 0, in percent, with a sum of 100.
        group: Name of the communication group, 1 to 127 characters.

    Raises:
        ValueError: If an argument breaks these rules; the setting is then left as it was.
    """
    _by_size[_checked_group(group)] = SplitByPercentage(dataSizeList)


def split_strategy(group: str = WORLD_GROUP) -> SplitByIndex | SplitByPercentage | None:
    """Returns the process-wide split in force for `group`, or None where none was set."""
    return _by_size.get(group) or _by_idx.get(group)


def clear_split_strategy() -> None:
    """Forgets the process-wide splits of all groups, as a test or a notebook may want."""
    _by_idx.clear()
    _by_size.clear()


def fair_division(sizes: Sequence[int], n_ranks: int) -> list[int]:
    """Divides variables among ranks into contiguous shares of about equal bytes.

    Rank after rank takes variables up to the average of what is left for each rank, leaving at
    least one for every rank to come. The variable that crosses the average is taken when that
    misses it by no more than leaving it. A variable larger than all others together fills a
    rank by itself, so it is left out of the average. The rule is the one of Ascend's
    `NPUDistributedOptimizer` with weight-update sharding.

    Args:
        sizes: Bytes of each variable, in variable order.
        n_ranks: Number of ranks, from 1 to `len(sizes)`.

    Returns:
        The owner's rank for each variable, ascending; every rank owns at least one.

    Raises:
        ValueError: If `n_ranks` is less than 1 or more than the number of variables.

    Example:

    >>> fair_division([400, 100, 100, 200], 2)
    [0, 1, 1, 1]
    """
    if not 1 <= n_ranks <= len(sizes):
        raise ValueError(
            f"Weight-update sharding needs at least one variable for each rank: {len(sizes)} "
            f"variables can be divided among 1 to {len(sizes)} ranks. Received: "
            f"n_ranks={n_ranks!r}. Use fewer ranks, or is_weight_update_sharding=False"
        )
    owners: list[int] = []
    for rank in range(n_ranks):
        count = _share(sizes[len(owners) :], n_ranks - rank)
        owners += [rank] * count
    return owners


def _parse_list(split: Sequence[float]) -> SplitStrategy:
    readings: list[SplitStrategy] = []
    reasons: list[str] = []
    for strategy in (SplitByIndex, SplitByPercentage):
        try:
            readings.append(strategy(split))  # type: ignore[arg-type]
        except ValueError as error:
            reasons.append(f"as {strategy.__name__}: {error}")
    if not readings:
        raise ValueError(
            "`split` is neither a list of indices nor a list of percentages; " + "; ".join(reasons)
        )
    if len(readings) == 2:
        raise ValueError(
            "`split` can be read as indices and as percentages. "
            f"Received: split={split!r}. Pass SplitByIndex({split!r}) or "
            f"SplitByPercentage({split!r}) to say which"
        )
    return readings[0]


def _checked_group(group: object) -> str:
    if not isinstance(group, str) or not 1 <= len(group) <= 127:
        raise ValueError(
            f"`group` must be a string of 1 to 127 characters. Received: group={group!r}"
        )
    return group


def _share(sizes: Sequence[int], n_ranks: int) -> int:
    most = len(sizes) - (n_ranks - 1)
    average = _average(sizes, n_ranks)
    taken = sizes[0]
    for count in range(1, most):
        over = taken + sizes[count] - average
        if over > 0:
            return count + 1 if over <= average - taken else count
        taken += sizes[count]
    return most


def _average(sizes: Sequence[int], n_ranks: int) -> int:
    rest = sum(sizes)
    for size in sorted(sizes, reverse=True):
        # One rank must stay to divide by, also when each variable outweighs all smaller ones.
        if size <= rest - size or n_ranks == 1:
            break
        rest -= size
        n_ranks -= 1
    return rest // n_ranks
