# SPDX-License-Identifier: Apache-2.0
"""Collective operations with the signatures of Ascend's adapters, over whichever engine is found.

`fusion` and `fusion_id` are checked as documented, and have no effect.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from npu_keras import distribute
from npu_keras.ascend.hardware import check_group
from npu_keras.engines.base import check_root
from npu_keras.engines.lane_order import separate
from npu_keras.inputs import as_tensor
from npu_keras.startup import EAGER_LANE, take_lanes

WORLD_GROUP = "hccl_world_group"
REDUCTIONS = ("mean", "sum", "max", "min", "prod")


def check_fusion(fusion: int, fusion_id: int, allowed: tuple[int, ...] = (0, 1, 2)) -> None:
    """Raises ValueError for a fusion that the adapters would not compile."""
    if fusion not in allowed or (fusion == 1 and fusion_id != -1):
        raise ValueError(
            f"`fusion` must be one of {allowed}, and with `fusion=1` `fusion_id` is -1. "
            f"Received: fusion={fusion!r}, fusion_id={fusion_id!r}"
        )


@tf.autograph.experimental.do_not_convert
def all_reduce(
    values: Any,
    reduction: str = "mean",
    fusion: int = 1,
    fusion_id: int = -1,
    group: str = WORLD_GROUP,
) -> Any:
    """Reduces tensors over all ranks.

    Unlike the adapter's it takes IndexedSlices (mean and sum, by gathering rows), and a mean
    divides before it sums, so that float16 cannot overflow on the way.

    Args:
        values: a tensor or IndexedSlices, or a list or tuple of them; None stays None.
        reduction: `"mean"`, `"sum"`, `"max"`, `"min"` or `"prod"`.
        fusion: 0, 1 or 2.
        fusion_id: -1 with `fusion=1`.
        group: only `"hccl_world_group"`.

    Returns:
        The same structure.

    Raises:
        ValueError: for another reduction, group or fusion.
    """
    check_fusion(fusion, fusion_id)
    check_group(group)
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"`reduction` must be one of {REDUCTIONS}. Received: reduction={reduction!r}"
        )
    if isinstance(values, list | tuple):
        return type(values)(_reduced(v, reduction) for v in values)
    return _reduced(values, reduction)


def npu_allreduce(
    values: Any,
    reduction: str = "mean",
    fusion: int = 1,
    fusion_id: int = -1,
    group: str = WORLD_GROUP,
) -> Any:
    """Reduces tensors over all ranks, as `all_reduce`; a None stays None instead of failing."""
    return all_reduce(values, reduction, fusion, fusion_id, group)


def average_all_reduce(tensor: Any, average: bool = True) -> Any:
    """Reduces a tensor over all ranks; `npu_optimizer.allreduce`.

    Args:
        tensor: a tensor or IndexedSlices.
        average: whether it is the mean, and not the sum.
    """
    return all_reduce(tensor, "mean" if average else "sum")


def allreduce(
    tensor: Any,
    reduction: str,
    fusion: int = 1,
    fusion_id: int = -1,
    group: str = WORLD_GROUP,
) -> tf.Tensor:
    """Reduces a tensor over all ranks; its gradient is the sum over all ranks.

    Args:
        tensor: numbers of any shape.
        reduction: `"sum"`, `"max"`, `"min"` or `"prod"`.
        fusion: 0, 1 or 2.
        fusion_id: -1 with `fusion=1`.
        group: only `"hccl_world_group"`.
    """
    if reduction == "mean":
        raise ValueError("`allreduce` has no mean: sum, then divide by the number of ranks.")

    @tf.custom_gradient
    def reduced(value: tf.Tensor) -> Any:
        return all_reduce(value, reduction, fusion, fusion_id, group), lambda g: _reduced(g, "sum")

    return reduced(as_tensor("`tensor`", tensor, "a tensor of numbers"))


def allgather(
    tensor: Any,
    rank_size: int,
    group: str = WORLD_GROUP,
    fusion: int = 0,
    fusion_id: int = -1,
) -> tf.Tensor:
    """Concatenates the tensors of all ranks along axis 0.

    Args:
        tensor: of one axis at least.
        rank_size: the number of ranks.
        group: only `"hccl_world_group"`.
        fusion: 0, 1 or 2.
        fusion_id: -1 with `fusion=1`.
    """
    check_fusion(fusion, fusion_id)
    check_group(group)
    _check_rank_size(rank_size)
    return _gathered(_rows(tensor))


@tf.autograph.experimental.do_not_convert
def broadcast_tensors(
    tensor: Sequence[Any],
    root_rank: int,
    fusion: int = 2,
    fusion_id: int = 0,
    group: str = WORLD_GROUP,
) -> list[tf.Tensor]:
    """Returns the tensors of one rank, on every rank; `hccl_ops.broadcast`.

    Args:
        tensor: list of tensors or variables.
        root_rank: whose values all get.
        fusion: 0 or 2.
        fusion_id: a number.
        group: only `"hccl_world_group"`.

    Raises:
        TypeError: for what is no list, or no tensor in it.
        ValueError: for another group, fusion or root.
    """
    check_fusion(fusion, fusion_id, (0, 2))
    check_group(group)
    if not isinstance(tensor, list | tuple):
        raise TypeError(
            "`tensor` must be a list of tensors or variables, for example `[weights]`. "
            f"Received: tensor={tensor!r}"
        )
    values = [as_tensor("Each of `tensor`", v, "a tensor or a variable") for v in tensor]
    engine, lane = distribute.engine(), _lane()
    with separate(f"hccl {lane} "):
        return list(engine.broadcast(values, root_rank=root_rank, lane=lane, label="broadcast"))


def reduce_to_root(
    tensor: Any,
    reduction: str,
    root_rank: int,
    fusion: int = 0,
    fusion_id: int = -1,
    group: str = WORLD_GROUP,
) -> tf.Tensor:
    """Reduces a tensor for one rank; the others get the result as well. `hccl_ops.reduce`."""
    check_root(root_rank, distribute.size())
    return allreduce(tensor, reduction, fusion, fusion_id, group)


def reduce_scatter(
    tensor: Any, reduction: str, rank_size: int, group: str = WORLD_GROUP
) -> tf.Tensor:
    """Reduces a tensor over all ranks, and returns this rank's part of it along axis 0.

    Args:
        tensor: its first axis is divisible by the number of ranks.
        reduction: `"sum"`, `"max"`, `"min"` or `"prod"`.
        rank_size: the number of ranks.
        group: only `"hccl_world_group"`.

    Raises:
        ValueError: for a scalar, for rows that cannot be divided, or another number of ranks.
    """
    _check_rank_size(rank_size)
    rows = _rows(tensor)
    if rows.shape[0] is not None and rows.shape[0] % rank_size:
        raise ValueError(
            f"The first axis of `tensor` must be divisible by the number of ranks, {rank_size}. "
            f"Received: a tensor of shape {rows.shape}"
        )
    return tf.split(allreduce(rows, reduction, group=group), rank_size)[distribute.rank()]


def _rows(tensor: Any) -> tf.Tensor:
    rows = as_tensor("`tensor`", tensor, "a tensor of one axis at least")
    if rows.shape.rank == 0:
        raise ValueError(
            f"`tensor` must have one axis at least, of rows. Received: the scalar {tensor!r}"
        )
    return rows


def _reduced(value: Any, reduction: str) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        return _gathered_rows(value, reduction)
    with separate(f"hccl {take_lanes(distribute.engine(), 0)} "):
        if reduction != "prod":
            return distribute.all_reduce(value, reduction)
        return tf.reduce_prod(_gathered(tf.convert_to_tensor(value)[None]), axis=0)


def _gathered_rows(slices: tf.IndexedSlices, reduction: str) -> tf.IndexedSlices:
    if reduction not in ("mean", "sum"):
        raise ValueError(
            f"IndexedSlices have a mean and a sum over ranks. Received: reduction={reduction!r}"
        )
    values, size = slices.values, distribute.size()
    values = values / tf.constant(size, values.dtype) if reduction == "mean" else values
    return tf.IndexedSlices(_gathered(values), _gathered(slices.indices), slices.dense_shape)


@tf.autograph.experimental.do_not_convert
def _gathered(tensor: tf.Tensor) -> tf.Tensor:
    lane = _lane()
    with separate(f"hccl {lane} "):
        return distribute.engine().all_gather(tensor, lane=lane, label="allgather")


def _lane() -> int:
    return EAGER_LANE if tf.executing_eagerly() else take_lanes(distribute.engine(), 1)


def _check_rank_size(rank_size: int) -> None:
    if rank_size != distribute.size():
        raise ValueError(
            f"`rank_size` must be the number of ranks, {distribute.size()}. "
            f"Received: rank_size={rank_size!r}"
        )
