# SPDX-License-Identifier: Apache-2.0
"""Rank helpers of `hccl.manage.api`, `npu_bridge` and `ops_adapter`; no initialisation needed."""

import os
from collections.abc import Sequence

from npu_keras import cluster, distribute
from npu_keras.ascend.hardware import WORLD, check_group, groups

_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


def get_rank_size(group: str = "hccl_world_group") -> int:
    """Returns the number of ranks."""
    check_group(group)
    return distribute.size()


def get_rank_id(group: str = "hccl_world_group") -> int:
    """Returns this process's rank."""
    check_group(group)
    return distribute.rank()


def get_local_rank_size(group: str = "hccl_world_group") -> int:
    """Returns the number of ranks on this host.

    It is taken from the launcher's environment (MPICH, Open MPI, TF_CONFIG); where that does not
    tell, all ranks are taken to be on one host.
    """
    check_group(group)
    here = cluster.find()
    if here.workers:
        hosts = [worker.rpartition(":")[0] for worker in here.workers]
        return hosts.count(hosts[here.rank])
    counted = [int(os.environ[name]) for name in _LOCAL_SIZES if name in os.environ]
    return counted[0] if counted else distribute.size()


def get_local_rank_id(group: str = "hccl_world_group") -> int:
    """Returns this process's number on its host."""
    check_group(group)
    return cluster.find().local_rank


def get_npu_rank_size() -> int:
    """Returns the number of ranks, before `init_resource` too."""
    return get_rank_size()


def get_npu_rank_id() -> int:
    """Returns this process's rank, before `init_resource` too."""
    return get_rank_id()


def get_npu_local_rank_id() -> int:
    """Returns this process's number on its host, before `init_resource` too."""
    return get_local_rank_id()


def create_group(group: str, rank_num: int, rank_ids: Sequence[int]) -> None:
    """Gives the group of all ranks another name; there are no groups of some of them.

    Args:
        group: the name.
        rank_num: the number of ranks.
        rank_ids: all ranks, in order.

    Raises:
        ValueError: for a group of other ranks.
    """
    everyone = list(range(distribute.size()))
    if list(rank_ids) != everyone or rank_num != len(everyone):
        raise ValueError(
            f"Only a group of all ranks can be made here: {everyone}. "
            f"Received: rank_num={rank_num!r}, rank_ids={rank_ids!r}"
        )
    groups.add(group)


def destroy_group(group: str) -> None:
    """Forgets a name that `create_group` has given."""
    check_group(group)
    if group == WORLD:
        raise ValueError(f"The group of all ranks stays. Received: group={group!r}")
    groups.remove(group)


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """Returns the rank in the job of a rank in the group; there is one group of all ranks."""
    check_group(group)
    return _checked(group_rank_id)


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """Returns the rank in the group of a rank in the job; there is one group of all ranks."""
    check_group(group)
    return _checked(world_rank_id)


def _checked(rank: int) -> int:
    if rank not in range(distribute.size()):
        raise ValueError(
            f"Expected a rank from 0 to {distribute.size() - 1}. Received: rank={rank!r}"
        )
    return rank
