# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_keras.buckets import (
    Bucket,
    Item,
    SplitByBytes,
    SplitByIndex,
    SplitByPercentage,
    SplitHcclDefault,
)

MB = 1024 * 1024


def make_items(sizes, dtypes=None):
    """Items in sending order: the last variable of the model first, as backward makes them."""
    dtypes = dtypes or ["float32"] * len(sizes)
    last = len(sizes) - 1
    rows = enumerate(zip(sizes, dtypes, strict=True))
    return [Item(last - n, f"v{last - n}", dtype, size) for n, (size, dtype) in rows]


def positions(strategy, sizes, dtypes=None):
    """The plan's buckets as lists of sending positions."""
    plan = strategy.plan(make_items(sizes, dtypes))
    return [[len(sizes) - 1 - index for index in bucket.indices] for bucket in plan.buckets]


items_of_a_model = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from(["float32", "float16", "bfloat16"])),
    max_size=30,
).map(lambda rows: make_items([size for size, _ in rows], [dtype for _, dtype in rows]))

percentages = (
    st.lists(st.integers(0, 100), min_size=1, max_size=8)
    .filter(any)
    .map(lambda parts: [100 * part / sum(parts) for part in parts])
)


def assert_is_partition(plan, items):
    """Each variable in exactly one bucket, in order and contiguous within its dtype."""
    for dtype in {item.dtype for item in items}:
        sent = [i for bucket in plan.buckets if bucket.dtype == dtype for i in bucket.indices]
        assert sent == [item.index for item in items if item.dtype == dtype]
    assert sum(len(bucket.indices) for bucket in plan.buckets) == len(items)
    sizes = {item.index: item.size_bytes for item in items}
    for bucket in plan.buckets:
        assert bucket.indices
        assert bucket.size_bytes == sum(sizes[index] for index in bucket.indices)
    ready = [items[-1].index - bucket.indices[-1] for bucket in plan.buckets]
    assert ready == sorted(ready)


@given(items_of_a_model, st.integers(1, 120))
def test_by_bytes_is_a_partition_within_the_limit(items, bucket_bytes):
    plan = SplitByBytes(bucket_bytes).plan(items)
    assert_is_partition(plan, items)
    for bucket in plan.buckets:
        assert bucket.size_bytes <= bucket_bytes or len(bucket.indices) == 1


@given(items_of_a_model, percentages)
def test_by_percentage_is_a_partition_of_few_segments(items, shares):
    plan = SplitByPercentage(shares).plan(items)
    assert_is_partition(plan, items)
    segments = sum(share > 0 for share in shares)
    for dtype in {item.dtype for item in items}:
        count = sum(item.dtype == dtype for item in items)
        buckets = sum(bucket.dtype == dtype for bucket in plan.buckets)
        assert 1 <= buckets <= min(segments, count)


@given(items_of_a_model.filter(bool), st.sets(st.integers(0, 28), max_size=7))
def test_by_index_is_a_partition_cut_at_the_indices(items, cuts):
    last = len(items) - 1
    indices = [*sorted(cut for cut in cuts if cut < last), last]
    plan = SplitByIndex(indices).plan(items)
    assert_is_partition(plan, items)
    segment_of = {
        item.index: sum(position > cut for cut in indices) for position, item in enumerate(items)
    }
    seen = [({segment_of[i] for i in bucket.indices}, bucket.dtype) for bucket in plan.buckets]
    assert all(len(segments) == 1 for segments, _ in seen)
    assert len({(min(segments), dtype) for segments, dtype in seen}) == len(seen)


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (1, [[0], [1], [2], [3], [4]]),
        (25 * MB, [[0, 1], [2], [3, 4]]),
        (26 * MB, [[0, 1], [2], [3, 4]]),
        (10**12, [[0, 1, 2, 3, 4]]),
    ],
)
def test_by_bytes_extremes(bucket_bytes, expected):
    sizes = [10 * MB, 15 * MB, 40 * MB, 4, 8]
    assert positions(SplitByBytes(bucket_bytes), sizes) == expected


def test_by_bytes_fills_per_dtype_and_sends_what_is_complete_first():
    dtypes = ["float32", "float16", "float32", "float16", "float16"]
    plan = SplitByBytes(8).plan(make_items([4, 2, 4, 2, 6], dtypes))
    assert plan.buckets == (
        Bucket("float32", (4, 2), 8),
        Bucket("float16", (3, 1), 4),
        Bucket("float16", (0,), 6),
    )


def test_by_bytes_takes_empty_variables():
    assert positions(SplitByBytes(4), [0, 4, 0, 5, 0]) == [[0, 1, 2], [3], [4]]


@pytest.mark.parametrize("bucket_bytes", [0, -1, 1.5, 4.0, True, "25", None])
def test_by_bytes_refuses(bucket_bytes):
    with pytest.raises(ValueError, match="whole number of bytes"):
        SplitByBytes(bucket_bytes)


def test_by_index_makes_the_documented_segments():
    buckets = positions(SplitByIndex([20, 100, 159]), [4] * 160)
    assert buckets == [list(range(21)), list(range(21, 101)), list(range(101, 160))]


def test_by_index_cuts_a_mixed_segment_per_dtype():
    dtypes = ["float32", "float16", "float32", "float16"]
    assert positions(SplitByIndex([2, 3]), [1] * 4, dtypes) == [[1], [0, 2], [3]]


@pytest.mark.parametrize("count", [0, 159, 161])
def test_by_index_must_end_at_the_last_gradient(count):
    with pytest.raises(ValueError, match=rf"{count} gradients are sent, so {count - 1} was"):
        SplitByIndex([20, 100, 159]).plan(make_items([4] * count))


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "1 to 8 numbers"),
        (list(range(9)), "1 to 8 numbers"),
        (5, "1 to 8 numbers"),
        ("123", "1 to 8 numbers"),
        ([1, 1], "strictly ascending"),
        ([2, 1], "strictly ascending"),
        ([-1, 1], "from 0 to"),
        ([2**32], "from 0 to"),
        ([1.0, 2.0], "must be integers"),
        ([False, True], "must be integers"),
    ],
)
def test_by_index_refuses(indices, message):
    with pytest.raises(ValueError, match=message):
        SplitByIndex(indices)


@pytest.mark.parametrize(
    ("shares", "sizes", "expected"),
    [
        ([60, 20, 20], [10] * 10, [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]),
        # 50 is as near to 40 as to 60: the lower index.
        ([50, 50], [40, 20, 40], [[0], [1, 2]]),
        # The first segment takes 40 instead of 25; the second gets 10 for it, not 25.
        ([25, 25, 50], [40, 10, 10, 40], [[0], [1], [2, 3]]),
        # One gradient is past the first three shares; each still takes one at least.
        ([1, 1, 1, 97], [90, 5, 5], [[0], [1], [2]]),
        # The first cut is nearest to the end: nothing is left for the others.
        ([60, 20, 20], [1, 1, 98], [[0, 1, 2]]),
        ([0, 50, 0, 50, 0], [10, 10], [[0], [1]]),
        ([100], [1, 2, 3], [[0, 1, 2]]),
        ([20, 20, 20, 20, 20], [7], [[0]]),
        ([50, 50], [0, 0, 0], [[0], [1, 2]]),
        ([50, 50], [10, 0, 0], [[0], [1, 2]]),
        ([50, 50], [], []),
    ],
)
def test_by_percentage_cuts_nearest_with_carry(shares, sizes, expected):
    assert positions(SplitByPercentage(shares), sizes) == expected


def test_by_percentage_applies_to_each_dtype():
    dtypes = ["float32", "float16"] * 4
    buckets = positions(SplitByPercentage([75, 25]), [8, 2] * 4, dtypes)
    assert buckets == [[0, 2, 4], [1, 3, 5], [6], [7]]


@pytest.mark.parametrize(
    "shares",
    [
        [33.3, 33.3, 33.3, 0.1],
        [0.1] * 3 + [99.7],
        [100 / 7] * 7,
        [100.00005],
        np.full(4, 25.0),
    ],
)
def test_by_percentage_sum_has_a_tolerance(shares):
    shares = list(shares)
    assert SplitByPercentage(shares).percentages == tuple(shares)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([], "1 to 8 numbers"),
        ([12.5] * 8 + [0], "1 to 8 numbers"),
        (100, "1 to 8 numbers"),
        ([60, 20, 19.99], "sum to 100"),
        ([100.001], "sum to 100"),
        ([float("inf")], "sum to 100"),
        ([1e308] * 8, "sum to 100"),
        ([110, -10], "at least 0"),
        ([float("nan"), 100], "at least 0"),
        (["100"], "at least 0"),
        ([99, True], "at least 0"),
    ],
)
def test_by_percentage_refuses(shares, message):
    with pytest.raises(ValueError, match=message):
        SplitByPercentage(shares)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # Of 10000 bytes, 9654 is nearer to 9600 than to 9800.
        ([9600, 200, 200], [[0], [1, 2]]),
        ([9500, 200, 300], [[0, 1], [2]]),
        ([9000, 1000], [[0, 1]]),
        ([5], [[0]]),
    ],
)
def test_hccl_default_is_two_segments_where_there_is_a_second(sizes, expected):
    assert positions(SplitHcclDefault(), sizes) == expected


def test_strategies_are_values():
    shares = [60, 20, 20]
    strategy = SplitByPercentage(shares)
    shares[0] = 0
    assert strategy == SplitByPercentage((60, 20, 20))
    assert {SplitByIndex([1, 2]), SplitByIndex((np.int64(1), 2))} == {SplitByIndex((1, 2))}
    with pytest.raises(AttributeError):
        strategy.percentages = (100,)


def test_numpy_numbers_are_kept_as_plain_ones():
    assert repr(SplitByPercentage([np.float32(50), np.int64(50)]).percentages) == "(50.0, 50)"
    assert repr(SplitByIndex([np.int64(3)]).indices) == "(3,)"


def test_describe_is_a_table():
    dtypes = ["float32", "float32", "float32", "float16"]
    plan = SplitByBytes(MB).plan(make_items([100, MB - 100, 1536 * MB, 2000], dtypes))
    assert plan.describe().splitlines() == [
        "segment  dtype    variables  count    bytes",
        "0        float32  v3 .. v2       2  1.0 MiB",
        "1        float32  v1             1  1.5 GiB",
        "2        float16  v0             1  2.0 KiB",
        "total                            4  1.5 GiB",
    ]


def test_describe_of_nothing():
    assert SplitByBytes(1).plan([]).describe().splitlines() == [
        "segment  dtype  variables  count  bytes",
        "total                          0    0 B",
    ]
