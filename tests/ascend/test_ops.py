# SPDX-License-Identifier: Apache-2.0
"""Operations, contexts and helpers of the adapters that need no hardware."""

import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from npu_keras.ascend import ops, scopes, sessions
from npu_keras.ascend.__main__ import _make_room_for_waiting, _tell_ranks
from npu_keras.ascend.hardware import _told
from npu_keras.cluster import Cluster, find

pytestmark = pytest.mark.tf


def test_dropout_in_two_parts_keeps_a_share_and_scales_it_up():
    x = tf.Variable(tf.fill([1000], 3.0))
    mask = ops.drop_out_gen_mask_v3([1000], 0.25, 1, 2, None)
    assert mask.dtype == tf.uint8
    kept = mask.numpy().astype(bool)
    assert 200 < kept.sum() < 300
    with tf.GradientTape() as tape:
        y = ops.drop_out_do_mask_v3(x, mask, 0.25)
    np.testing.assert_array_equal(y, np.where(kept, 12.0, 0.0))
    np.testing.assert_array_equal(tape.gradient(y, x), np.where(kept, 4.0, 0.0))
    infinite = tf.fill([1000], float("inf"))
    assert np.isfinite(ops.drop_out_do_mask(infinite, mask, 0.25).numpy()[~kept]).all()
    assert not np.array_equal(ops.drop_out_gen_mask([1000], 0.25), mask)


def test_what_is_for_the_compiler_changes_nothing():
    _told.clear()
    with scopes.without_npu_compile_scope():
        assert float(tf.constant(1.0) + 1.0) == 2.0
    with pytest.warns(UserWarning, match="no op changes its dtype"), scopes.keep_dtype_scope():
        assert float(tf.constant(1.0) + 1.0) == 2.0
    op = object()
    assert sessions.set_iteration_per_loop(None, op, 1) is op
    with pytest.warns(UserWarning, match=r"`set_iteration_per_loop\(..., 10\)` has no effect.*one"):
        assert sessions.set_iteration_per_loop(None, op, 10) is op
    with pytest.warns(UserWarning, match="set_graph_exec_config"):
        assert sessions.set_graph_exec_config(op, dynamic_input=True) is op


@mock.patch.dict(os.environ)
def test_scripts_that_read_ranks_from_the_environment():
    given = {"RANK_SIZE": "2", "RANK_ID": "1", "DEVICE_ID": "0", "ASCEND_DEVICE_ID": "0"}
    for name in (*given, "JOB_ID", "CM_WORKER_SIZE"):
        os.environ.pop(name, None)
    place = Cluster(1, 2, 0, "mpi")
    _tell_ranks(place)
    assert {name: os.environ[name] for name in given} == given
    assert os.environ["JOB_ID"]
    assert find() == Cluster(1, 2, 0, "ascend")
    os.environ["RANK_ID"] = "0"
    _tell_ranks(place)
    assert os.environ["RANK_ID"] == "0"  # what the user has set stays
    del os.environ["RANK_SIZE"]
    os.environ["CM_WORKER_SIZE"] = "2"
    _tell_ranks(place)
    assert "RANK_SIZE" not in os.environ


@mock.patch.dict(os.environ)
def test_there_is_room_for_optimizers_that_wait_unless_the_user_says_how_much():
    os.environ.pop("TF_NUM_INTEROP_THREADS", None)
    _make_room_for_waiting()
    assert int(os.environ["TF_NUM_INTEROP_THREADS"]) >= 16
    os.environ["TF_NUM_INTEROP_THREADS"] = "3"
    _make_room_for_waiting()
    assert os.environ["TF_NUM_INTEROP_THREADS"] == "3"
