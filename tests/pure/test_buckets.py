# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_keras.buckets import (
    Item,
    SplitByBytes,
    SplitByIndex,
    SplitByPercentage,
    SplitHcclDefault,
    clear_split_strategy,
    fair_division,
    parse_split,
    set_split_strategy_by_idx,
    set_split_strategy_by_size,
    split_strategy,
)


@pytest.fixture(autouse=True)
def _no_process_wide_split():
    clear_split_strategy()
    yield
    clear_split_strategy()


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (None, None),
        (4096, SplitByBytes(4096)),
        ([20, 100, 159], SplitByIndex((20, 100, 159))),
        ([0], SplitByIndex((0,))),
        ([60, 20, 20], SplitByPercentage((60, 20, 20))),
        ((50, 50), SplitByPercentage((50, 50))),
        ([10.0, 90.0], SplitByPercentage((10, 90))),
        ([0, 100, 0], SplitByPercentage((0, 100, 0))),
        (SplitByIndex([10, 90]), SplitByIndex((10, 90))),
        (SplitHcclDefault(), SplitHcclDefault()),
    ],
)
def test_parse_split(split, expected):
    assert parse_split(split) == expected


@pytest.mark.parametrize("split", [[10, 90], [0, 100], [1, 99], [100], (1, 2, 97)])
def test_parse_split_does_not_guess(split):
    with pytest.raises(ValueError, match=r"indices and as percentages.*SplitByIndex\(.*SplitByPer"):
        parse_split(split)


@pytest.mark.parametrize("split", [[60, 20, 19], [], [3, 2], [-1, 101], [1] * 9, ["a"]])
def test_parse_split_names_both_readings_when_neither_fits(split):
    with pytest.raises(ValueError, match=r"as SplitByIndex: .*; as SplitByPercentage: "):
        parse_split(split)


@pytest.mark.parametrize("split", [True, 2.5, "60,20,20", {60, 40}, SplitByBytes])
def test_parse_split_refuses_other_types(split):
    with pytest.raises(ValueError, match="must be None, a number of bytes"):
        parse_split(split)


def test_parse_split_refuses_a_bucket_of_no_bytes():
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_split(0)


def test_parse_split_takes_a_strategy_of_the_user():
    class OneEach:
        def plan(self, items):
            return SplitByBytes(1).plan(items)

    own = OneEach()
    assert parse_split(own) is own
    assert len(own.plan([Item(1, "b", "float32", 4), Item(0, "a", "float32", 4)]).buckets) == 2


def test_process_wide_split_by_size_goes_before_by_idx():
    assert split_strategy() is None
    set_split_strategy_by_size([60, 20, 20])
    set_split_strategy_by_idx([20, 100, 159])
    assert split_strategy() == SplitByPercentage((60, 20, 20))
    clear_split_strategy()
    assert split_strategy() is None
    set_split_strategy_by_idx([20, 100, 159])
    assert split_strategy() == SplitByIndex((20, 100, 159))


def test_process_wide_split_is_kept_by_group():
    set_split_strategy_by_idx(idxList=[1, 2], group="half")
    set_split_strategy_by_size(dataSizeList=[10, 90])
    assert split_strategy("half") == SplitByIndex((1, 2))
    assert split_strategy() == SplitByPercentage((10, 90))
    assert split_strategy("hccl_world_group") == SplitByPercentage((10, 90))


@pytest.mark.parametrize("group", ["", "g" * 128, None, 3, b"hccl_world_group"])
def test_process_wide_split_refuses_group(group):
    with pytest.raises(ValueError, match="1 to 127 characters"):
        set_split_strategy_by_idx([1], group)
    with pytest.raises(ValueError, match="1 to 127 characters"):
        set_split_strategy_by_size([100], group)


@pytest.mark.parametrize("group", ["g", "g" * 127])
def test_process_wide_split_takes_the_shortest_and_the_longest_group_name(group):
    set_split_strategy_by_idx([1], group)
    assert split_strategy(group) == SplitByIndex((1,))


def test_a_refused_setting_leaves_the_old_one():
    set_split_strategy_by_idx([1, 2])
    with pytest.raises(ValueError, match="strictly ascending"):
        set_split_strategy_by_idx([2, 1])
    with pytest.raises(ValueError, match="sum to 100"):
        set_split_strategy_by_size([50, 49])
    assert split_strategy() == SplitByIndex((1, 2))


@pytest.mark.parametrize(
    ("sizes", "n_ranks", "expected"),
    [
        ([5], 1, [0]),
        ([5, 6, 7], 1, [0, 0, 0]),
        ([9, 1, 1], 3, [0, 1, 2]),
        ([10] * 6, 3, [0, 0, 1, 1, 2, 2]),
        # 18 // 2 = 9 on each: 4 + 4 is 1 short, with the next 3 over.
        ([4, 4, 4, 4, 2], 2, [0, 0, 1, 1, 1]),
        # 8 on each: the third makes 9, 1 over, and without it 6 is 2 short.
        ([3, 3, 3, 3, 4], 2, [0, 0, 0, 1, 1]),
        # 7 on each: 1 over or 1 short is the same, so the crossing one is taken.
        ([6, 2, 6], 2, [0, 0, 1]),
        ([1, 2, 1], 2, [0, 0, 1]),
        # 4 fills a rank alone, and one of two ranks stays to divide by.
        ([1, 4, 1], 2, [0, 1, 1]),
        # 1000 fills a rank alone; the average of the others is 3, not 501.
        ([1000, 1, 1, 1], 2, [0, 1, 1, 1]),
        ([1, 1, 1, 1000], 2, [0, 0, 0, 1]),
        ([1000, 100, 1, 1, 1, 1], 4, [0, 1, 2, 2, 3, 3]),
        # 20 for each of two ranks; with 1000 in the average the first would take three.
        ([10, 10, 10, 10, 1000], 3, [0, 0, 1, 1, 2]),
        # 10 is not more than the others together: 6 on each, as far from 4 as from 8.
        ([4, 4, 2, 10], 3, [0, 0, 1, 2]),
        # One left for each rank to come, however small.
        ([1, 1, 1], 2, [0, 1, 1]),
        ([0, 0, 0, 0], 3, [0, 0, 1, 2]),
        # Every variable outweighs all smaller ones together.
        ([8, 4, 2, 1], 4, [0, 1, 2, 3]),
        ([1, 2, 4, 8], 3, [0, 0, 1, 2]),
    ],
)
def test_fair_division_follows_the_rule(sizes, n_ranks, expected):
    assert fair_division(sizes, n_ranks) == expected


@pytest.mark.parametrize(("count", "n_ranks"), [(3, 4), (3, 0), (3, -1), (0, 1)])
def test_fair_division_needs_a_variable_for_each_rank(count, n_ranks):
    with pytest.raises(ValueError, match=rf"{count} variables.*n_ranks={n_ranks}"):
        fair_division([4] * count, n_ranks)


sizes_and_ranks = st.lists(
    st.one_of(st.integers(0, 100), st.integers(0, 10**12)), min_size=1, max_size=40
).flatmap(lambda sizes: st.tuples(st.just(sizes), st.integers(1, len(sizes))))


@given(sizes_and_ranks)
def test_fair_division_is_contiguous_and_gives_each_rank_some(sizes_ranks):
    sizes, n_ranks = sizes_ranks
    owners = fair_division(sizes, n_ranks)
    assert len(owners) == len(sizes)
    assert owners == sorted(owners)
    assert set(owners) == set(range(n_ranks))
    assert fair_division(tuple(sizes), n_ranks) == owners


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 10**9))
def test_fair_division_of_equal_variables_differs_by_one_at_most(count, n_ranks, size):
    n_ranks = min(n_ranks, count)
    owners = fair_division([size] * count, n_ranks)
    shares = [owners.count(rank) for rank in range(n_ranks)]
    assert max(shares) - min(shares) <= 1
