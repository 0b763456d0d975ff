# SPDX-License-Identifier: Apache-2.0
"""Collective operations of the training job, over whichever engine it runs on."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from npu_keras import engines
from npu_keras._arguments import step_count
from npu_keras.engines.base import check_root
from npu_keras.inputs import as_tensor, variable_list
from npu_keras.startup import EAGER_LANE, take_lanes

REDUCTIONS = ("mean", *engines.REDUCTIONS)


def engine(name: str | None = None, timeout_s: float = engines.DEFAULT_TIMEOUT_S) -> engines.Engine:
    """Returns the engine of this process: how it talks to the other ranks.

    Args:
        name: one of `npu_keras.engines.NAMES`; None finds the one the environment asks for.
        timeout_s: the longest wait for another rank, in seconds.
    """
    return engines.find(name, timeout_s=timeout_s)


def rank() -> int:
    """Returns the number of this process, from 0 to `size() - 1`."""
    return engine().rank


def size() -> int:
    """Returns the number of processes."""
    return engine().size


# AutoGraph has nothing to convert here, and cannot look into MPI.
@tf.autograph.experimental.do_not_convert
def all_reduce(values: Any, reduction: str = "mean") -> Any:
    """Reduces tensors elementwise over all ranks.

    Args:
        values: a tensor, or a list or tuple of tensors of any numeric dtype and shape, the same
            on all ranks. None in a list stays None.
        reduction: `"mean"`, `"sum"`, `"max"` or `"min"`. A mean divides before it sends, so that
            finite numbers cannot overflow on the way.

    Returns:
        A tensor, or a list of tensors.

    Raises:
        ValueError: for an unknown reduction.
        TypeError: for a tensor that holds no numbers.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"`reduction` must be one of {REDUCTIONS}. Received: reduction={reduction!r}"
        )
    if not isinstance(values, list | tuple):
        return all_reduce([values], reduction)[0]
    return [None if value is None else _all_reduce_one(value, reduction) for value in values]


@tf.autograph.experimental.do_not_convert
def broadcast(variables: Sequence[Any], root_rank: int = 0) -> None:
    """Overwrites variables with those of one rank.

    Args:
        variables: Keras or TensorFlow variables, the same on all ranks; for example
            `model.variables`.
        root_rank: the rank whose values all take.

    Raises:
        TypeError: for what is no list of variables.
        ValueError: if there is no such rank.
    """
    variables = variable_list("`variables`", variables)
    check_root(root_rank, size())
    if not variables:
        return
    values = [tf.convert_to_tensor(variable) for variable in variables]
    lane = _lane()
    received = engine().broadcast(values, root_rank=root_rank, lane=lane, label="broadcast")
    for variable, value in zip(variables, received, strict=True):
        variable.assign(value)


def barrier() -> None:
    """Waits until all ranks are here."""
    engine().barrier("barrier")


def shard_and_rebatch_dataset(
    dataset: tf.data.Dataset, global_batch_size: int
) -> tuple[tf.data.Dataset, int]:
    """Gives each rank its share of a dataset, and the batch size to go with it.

    Args:
        dataset: not batched yet; rank r takes elements r, r + size, r + 2 size, ...
        global_batch_size: elements in one step over all ranks.

    Returns:
        The rank's dataset, not batched, and its batch size. With one rank both are unchanged.

    Raises:
        ValueError: if `global_batch_size` is not divisible by the number of ranks, or below 1.
        TypeError: for what is no dataset, or no integer.
    """
    _require_dataset(dataset)
    step_count("global_batch_size", global_batch_size)
    if size() == 1:
        return dataset, global_batch_size
    if global_batch_size % size():
        raise ValueError(
            f"`global_batch_size` must be divisible by the number of ranks, {size()}. "
            f"Received: global_batch_size={global_batch_size}"
        )
    return dataset.shard(size(), rank()), global_batch_size // size()


def equal_steps(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Cuts a dataset to the number of batches that every rank has.

    All ranks must call it. Without it a rank with more batches waits for the others in vain.

    Args:
        dataset: batched; any number of batches on each rank.

    Returns:
        The first batches of the dataset, as many as the rank with the fewest has.

    Raises:
        ValueError: on every rank, if any of them does not know its number of batches.
        TypeError: for what is no dataset.
    """
    _require_dataset(dataset)
    everyone = engine().exchange(int(dataset.cardinality().numpy()), "number of batches")
    unsure = [each for each, batches in enumerate(everyone) if batches < 0]
    if unsure:
        raise ValueError(
            "Every rank must know its number of batches. Received: a dataset of unknown or "
            f"infinite cardinality on ranks {unsure}. Cut it with `dataset.take(batches)`, the "
            "same on all ranks; `tf.data.experimental.assert_cardinality` tells what you know."
        )
    return dataset.take(min(everyone))


def _require_dataset(dataset: Any) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"`dataset` must be a `tf.data.Dataset`. Received: dataset={dataset!r}")


def _all_reduce_one(value: Any, reduction: str) -> tf.Tensor:
    value = as_tensor("`values`", value, "a tensor, or a list or tuple of tensors")
    if not (value.dtype.is_floating or value.dtype.is_integer):
        raise TypeError(
            f"Expected numbers to reduce. Received: a tensor of dtype {value.dtype.name}. "
            "Cast it first, for example a bool to int32."
        )
    mean = reduction == "mean"
    if mean and value.dtype.is_floating:
        value = value / tf.constant(size(), value.dtype)
    on_wire: Any = "sum" if mean else reduction
    (reduced,) = engine().all_reduce([value], reduction=on_wire, lane=_lane(), label="all_reduce")
    return reduced // size() if mean and value.dtype.is_integer else reduced


def _lane() -> int:
    # Eager calls come one after the other; a graph may run its calls side by side.
    return EAGER_LANE if tf.executing_eagerly() else take_lanes(engine(), 1)
