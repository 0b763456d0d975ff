# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's collective ops, addressed so that no two transfers meet by mistake.

An op meets those of the other ranks by the pair of group key and instance key, and what meets
under one pair must have one kind, one dtype and one size for the life of the process. So there is
a group for each lane and root, and the instance key is made from the rest while the graph runs.
"""

import math
from typing import Any, NamedTuple

import tensorflow as tf

_FIRST_GROUP = 1 << 20  # `tf.distribute` counts its groups from 0
_GROUPS_PER_LANE = 1 << 12
_KINDS = {"sum": 0, "max": 1, "min": 2, "gather": 3, "broadcast": 4}
_MERGE = {"sum": "Add", "max": "Max", "min": "Min"}
_DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64]
_SIZES = 1 << 26
_HINT = "ring"


class Channel(NamedTuple):
    """Where a transfer takes place.

    Args:
        size: int, number of ranks.
        lane: int, number of the bucket.
        timeout_s: float, seconds after which TensorFlow itself gives up.
    """

    size: int
    lane: int
    timeout_s: float

    def reduce(self, flat: tf.Tensor, reduction: str) -> tf.Tensor:
        """Reduces a vector of one of the six dtypes that TensorFlow reduces."""
        return tf.raw_ops.CollectiveReduceV2(
            input=flat,
            merge_op=_MERGE[reduction],
            final_op="Id",
            ordering_token=[],
            **self._address(reduction, flat),
        )

    def gather(self, flat: tf.Tensor) -> tf.Tensor:
        """Concatenates vectors of one size."""
        address = self._address("gather", flat)
        return tf.raw_ops.CollectiveGatherV2(input=flat, ordering_token=[], **address)

    def broadcast(self, flat: tf.Tensor, root: int, rank: int) -> tf.Tensor:
        """Gives every rank the vector of `root`."""
        address = self._address("broadcast", flat, root + 1)
        if rank == root:
            return tf.raw_ops.CollectiveBcastSendV2(input=flat, **address)
        return tf.raw_ops.CollectiveBcastRecvV2(T=flat.dtype, shape=tf.shape(flat), **address)

    def _address(self, kind: str, flat: tf.Tensor, subgroup: int = 0) -> dict[str, Any]:
        code = _KINDS[kind] * len(_DTYPES) + _DTYPES.index(flat.dtype)
        instance = code + len(_KINDS) * len(_DTYPES) * (tf.size(flat) % _SIZES)
        return {
            "group_size": self.size,
            "group_key": _FIRST_GROUP + self.lane * _GROUPS_PER_LANE + subgroup,
            "instance_key": instance,
            "communication_hint": _HINT,
            "timeout_seconds": self.timeout_s,
        }


def wire_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype in which TensorFlow can reduce values of `dtype` exactly.

    Raises:
        TypeError: if there is none.
    """
    if dtype in _DTYPES:
        return dtype
    if dtype in (tf.int8, tf.int16, tf.uint8, tf.uint16):
        return tf.int32
    if dtype == tf.uint32:
        return tf.int64
    raise TypeError(
        "Expected tensors of a float or integer dtype of at most 64 bits, not uint64. "
        f"Received: dtype={dtype!r}. Cast them, or use the mpi engine."
    )


def all_gather(channel: Channel, tensor: tf.Tensor) -> tf.Tensor:
    """Concatenates tensors that differ in their first dimension.

    Their numbers of rows are gathered first, then their bytes, padded to the longest.
    """
    rows = channel.gather(tf.shape(tensor, tf.int64)[:1])
    row_shape = tf.shape(tensor, tf.int64)[1:]
    row_bytes = tf.reduce_prod(row_shape) * tensor.dtype.size
    words = to_words(tensor)
    longest = _rounded_up(tf.reduce_max(rows) * row_bytes // 4 + 1)
    padded = tf.pad(words, [[0, longest - tf.size(words, tf.int64)]])
    data = tf.reshape(tf.bitcast(channel.gather(padded), tf.uint8), [channel.size, -1])
    kept = [data[rank, : rows[rank] * row_bytes] for rank in range(channel.size)]
    shape = tf.concat([tf.reduce_sum(rows, keepdims=True), row_shape], 0)
    return _from_bytes(tf.concat(kept, 0), shape, tensor.dtype)


def to_words(tensor: tf.Tensor) -> tf.Tensor:
    """The bytes of a tensor as a vector of int32, filled up with zeros."""
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    data = tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])
    data = tf.pad(data, [[0, -tf.size(data) % 4]])
    return tf.bitcast(tf.reshape(data, [-1, 4]), tf.int32)


def from_words(words: tf.Tensor, shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The tensor whose bytes a vector of int32 begins with."""
    data = tf.reshape(tf.bitcast(words, tf.uint8), [-1])
    return _from_bytes(data[: tf.reduce_prod(shape) * dtype.size], shape, dtype)


def _from_bytes(data: tf.Tensor, shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.cast(tf.reshape(data, shape), dtype)
    if dtype.size > 1:
        data = tf.reshape(data, [-1, dtype.size])
    return tf.reshape(tf.bitcast(data, dtype), shape)


def _rounded_up(size: tf.Tensor) -> tf.Tensor:
    """Rounds up by a quarter at most: TensorFlow never forgets a size it has transferred."""
    digits = tf.math.floor(tf.math.log(tf.cast(size, tf.float64)) / math.log(2.0))
    step = tf.cast(2.0 ** tf.maximum(digits - 2.0, 0.0), tf.int64)
    return (size + step - 1) // step * step
