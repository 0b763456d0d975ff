# SPDX-License-Identifier: Apache-2.0
"""`npu_device.distribute`: what is not an operation on tensors alone."""

from typing import Any

import tensorflow as tf

from npu_keras import distribute
from npu_keras.ascend.collectives import WORLD_GROUP, check_fusion
from npu_keras.ascend.hardware import check_group


def broadcast(
    values: Any,
    root_rank: int = 0,
    fusion: int = 2,
    fusion_id: int = 0,
    group: str = WORLD_GROUP,
) -> None:
    """Overwrites variables with those of one rank.

    Args:
        values: a variable, or a list or tuple of variables.
        root_rank: the rank whose values all take.
        fusion: 0 or 2.
        fusion_id: a number.
        group: only `"hccl_world_group"`.
    """
    check_fusion(fusion, fusion_id, (0, 2))
    check_group(group)
    distribute.broadcast(values if isinstance(values, list | tuple) else [values], root_rank)


def shard_and_rebatch_dataset(
    dataset: tf.data.Dataset, global_bs: int
) -> tuple[tf.data.Dataset, int]:
    """Gives each rank its share of a dataset, and the batch size to go with it.

    Args:
        dataset: not batched yet; rank r takes elements r, r + size, r + 2 size, ...
        global_bs: elements in one step over all ranks.

    Raises:
        ValueError: if `global_bs` is not divisible by the number of ranks.
    """
    size = distribute.size()
    if global_bs % size:
        raise ValueError(
            f"Batch size must be divisible by num npus: {size}. Received: global_bs={global_bs}"
        )
    return distribute.shard_and_rebatch_dataset(dataset, global_bs)
