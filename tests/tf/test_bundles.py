# SPDX-License-Identifier: Apache-2.0
"""Small gradients of one shape are worked on together, and come out as they went in."""

import numpy as np
import pytest
import tensorflow as tf
from scaled import INF, NAN

from npu_keras.bundles import MOST_BYTES, bundled, mapped
from npu_keras.overflow import OverflowCheck


def gradients():
    """Of several shapes and dtypes, equal ones apart from each other."""
    return [
        tf.constant([1.0, 2.0]),
        tf.constant([[3.0]]),
        tf.constant([4.0, 5.0]),
        tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([2, 2])),
        tf.constant([6.0, 7.0], tf.float16),
        tf.constant([8.0, 9.0]),
        tf.constant(10.0),
        tf.constant(11.0),
        tf.zeros((0, 2)),
        tf.zeros((0, 2)),
        tf.constant([12, 13]),
        tf.constant([14, 15]),
        tf.constant([1 + 2j, 3]),
        tf.constant([4j, 5]),
    ]


def test_what_is_stacked():
    indices = [bundle.indices for bundle in bundled(gradients())]
    assert indices == [[0, 2, 5], [1], [3], [4], [6, 7], [8, 9], [10, 11], [12, 13]]


def test_large_ones_are_not_copied():
    at_most, larger = (tf.zeros(MOST_BYTES // 4 + more) for more in (0, 1))
    found = [bundle.indices for bundle in bundled([at_most, at_most, larger, larger])]
    assert found == [[0, 1], [2], [3]]


def test_of_unknown_shape():
    @tf.function(input_signature=[tf.TensorSpec([None])] * 2)
    def doubled(first, second):
        assert [bundle.indices for bundle in bundled([first, second])] == [[0], [1]]
        return mapped(lambda values: 2 * values, [first, second])

    assert [t.numpy().tolist() for t in doubled([1.0], [2.0, 3.0])] == [[2.0], [4.0, 6.0]]


@pytest.mark.parametrize("how", ["eager", "function", "xla"])
def test_mapped(how):
    def squared():
        return mapped(lambda values: values * values, gradients())

    call = {
        "eager": squared,
        "function": tf.function(squared),
        "xla": tf.function(squared, jit_compile=True),
    }[how]
    for given, result in zip(gradients(), call(), strict=True):
        assert isinstance(result, tf.IndexedSlices) is isinstance(given, tf.IndexedSlices)
        assert (result.shape, result.dtype) == (given.shape, given.dtype)
        given, result = map(tf.convert_to_tensor, (given, result))
        np.testing.assert_array_equal(result, given * given)


@pytest.mark.parametrize("how", ["eager", "function", "xla"])
@pytest.mark.parametrize("mode", ["inf_nan", "saturation"])
def test_each_overflow_is_counted_where_it_is(mode, how):
    check = OverflowCheck(mode, "float32")
    inspect = {
        "eager": check.inspect,
        "function": tf.function(check.inspect),
        "xla": tf.function(check.inspect, jit_compile=True),
    }[how]
    bad = {0: [INF, NAN], 2: [0.0, INF], 4: [NAN, NAN], 5: [-INF, INF], 7: NAN, 13: [0j, INF * 1j]}
    given = gradients()
    assert not bool(inspect(given).overflowed)
    for index, values in bad.items():
        given[index] = tf.cast(tf.constant(values), given[index].dtype)
    finding = inspect(given)
    assert bool(finding.overflowed)
    infs = [1, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]
    assert finding.infs.numpy().tolist() == infs
    # inf * 1j is NaN + inf j.
    assert finding.nans.numpy().tolist() == [1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 1]
