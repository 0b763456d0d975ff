# SPDX-License-Identifier: Apache-2.0
"""Ranks, groups and devices as the adapters name them, in a process of its own."""

import json

import pytest
import tensorflow as tf

from npu_keras.ascend import device, ranks
from npu_keras.ascend.hardware import WORLD, _told

pytestmark = pytest.mark.tf
GROUP = "all of them"


@pytest.fixture
def alone(monkeypatch):
    for name in ("TF_CONFIG", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "RANK_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_one_process_is_rank_0_of_1_on_its_host(alone):
    assert (ranks.get_rank_size(), ranks.get_rank_id()) == (1, 0)
    assert (ranks.get_npu_rank_size(), ranks.get_npu_rank_id()) == (1, 0)
    assert (ranks.get_local_rank_size(), ranks.get_local_rank_id()) == (1, 0)
    assert ranks.get_npu_local_rank_id() == 0


def test_ranks_of_a_host_are_counted_where_the_launcher_says_so(alone, monkeypatch):
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    assert ranks.get_local_rank_size() == 4
    workers = ["alpha:1000", "beta:1000", "beta:1001"]
    task = {"type": "worker", "index": 2}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": workers}, "task": task}))
    assert (ranks.get_local_rank_size(), ranks.get_local_rank_id()) == (2, 1)


def test_a_group_is_another_name_for_all_ranks(alone):
    ranks.create_group(GROUP, 1, [0])
    assert ranks.get_rank_size(GROUP) == 1
    assert ranks.get_world_rank_from_group_rank(GROUP, 0) == 0
    assert ranks.get_group_rank_from_world_rank(0, GROUP) == 0
    with pytest.raises(ValueError, match=r"Expected a rank from 0 to 0\. Received: rank=1"):
        ranks.get_world_rank_from_group_rank(GROUP, 1)
    ranks.destroy_group(GROUP)
    with pytest.raises(ValueError, match=GROUP):
        ranks.get_rank_id(GROUP)
    with pytest.raises(ValueError, match=r"Only a group of all ranks .*: \[0\]"):
        ranks.create_group(GROUP, 2, [0, 1])
    with pytest.raises(ValueError, match="The group of all ranks stays"):
        ranks.destroy_group(WORLD)


def test_a_device_is_opened_and_training_stays_where_it_was():
    with device.open(3).as_default().scope():
        assert tf.constant(1.0).device.endswith("CPU:0")
    device.enable_v1()
    double = device.npu_compat_function(lambda x: 2.0 * x)
    assert float(double(tf.constant(3.0))) == 6.0


def test_switches_of_the_hardware_say_that_they_have_no_effect():
    _told.clear()
    device.set_npu_loop_size(1)
    device.set_device_sat_mode(1)
    with pytest.warns(UserWarning, match=r"`set_npu_loop_size\(\)` has no effect here"):
        device.set_npu_loop_size(100)
    with pytest.warns(UserWarning, match="only hardware saturates"):
        device.set_device_sat_mode(0)
    with pytest.raises(ValueError, match=r"Expected 0 \(saturation\) or 1 \(INF/NaN\)"):
        device.set_device_sat_mode(2)
    options = device.global_options()
    with pytest.warns(UserWarning, match=r"global_options\(\)\.set_graph_memory"):
        options.set_graph_memory(1)
