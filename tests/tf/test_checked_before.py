# SPDX-License-Identifier: Apache-2.0
"""What was found in scaled gradients outlives what a script does to them."""

import pytest
import tensorflow as tf

from npu_keras.overflow import CheckedBefore, OverflowCheck

pytestmark = pytest.mark.tf

CHECK = OverflowCheck("inf_nan", "float32")
INF, NAN = float("inf"), float("nan")


def found(finding):
    return bool(finding.overflowed), finding.infs.numpy().tolist(), finding.nans.numpy().tolist()


def test_the_larger_counts_are_kept():
    before = CHECK.inspect([tf.constant([INF, INF, 1.0]), tf.constant([1.0, NAN])])
    now = [tf.constant([INF, 1.0, 1.0]), tf.constant([NAN, NAN])]
    assert found(CheckedBefore(before).inspect(now)) == (True, [2, 0], [0, 2])


def test_an_overflow_that_was_clipped_away_still_counts():
    before = CHECK.inspect([tf.constant([INF])])
    assert found(CheckedBefore(before).inspect([tf.constant([1.0])])) == (True, [1], [0])
    assert found(CheckedBefore(None).inspect([tf.constant([1.0])])) == (False, [0], [0])


def test_of_other_gradients_only_the_verdict_is_kept():
    before = CHECK.inspect([tf.constant([INF]), tf.constant([1.0])])
    assert found(CheckedBefore(before).inspect([tf.constant([1.0])])) == (True, [0], [0])


def test_integers_beside_an_overflow_have_counts_of_zero():
    assert found(CHECK.inspect([tf.constant([3]), tf.constant([INF])])) == (True, [0, 1], [0, 0])
