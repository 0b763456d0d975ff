# SPDX-License-Identifier: Apache-2.0
"""Python collectives inside a graph: one op that starts a transfer, one that waits for it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from npu_keras import _upstream
from npu_keras.engines import lane_order

Start = Callable[[Sequence[Any]], int]
Finish = Callable[[int], list[Any]]


class Deferred:
    """Runs collectives written in Python, eagerly or from a graph.

    In a graph a transfer is two ops. `start` runs as soon as its tensors are there, in any
    order, and returns at once. `finish` waits. The waits of one graph are chained in the order
    of tracing, which all ranks share, so that only one thread waits at a time: were each lane
    to block a thread of its own, two ranks could fill their thread pools with different
    lanes, and neither would ever start what the other waits for.

    `tf.numpy_function` passes CPU tensors in and aligned arrays out without a copy, which
    `tf.py_function` does not (40 MB: 0.9 against 60 ms, TensorFlow 2.21).

    Args:
        ordered: bool, whether the starts are chained as well: one communicator for all lanes.
    """

    def __init__(self, ordered: bool = False) -> None:
        self._ordered = ordered

    @tf.autograph.experimental.do_not_convert
    def run(
        self,
        start: Start,
        finish: Finish,
        tensors: Sequence[tf.Tensor],
        shapes: Sequence[tf.TensorShape],
        dtypes: Sequence[tf.DType],
        lane: int,
    ) -> list[tf.Tensor]:
        """Starts a transfer of `tensors` and returns its results.

        Args:
            start: gets the tensors as arrays, returns the number of the transfer.
            finish: gets that number, waits, returns one array for each of `dtypes`.
            tensors: the tensors to send.
            shapes: static shapes of the results.
            dtypes: dtypes of the results.
            lane: int, starts of one lane keep the order of tracing.
        """
        if tf.executing_eagerly():
            arrays = finish(start([_as_array(tensor) for tensor in tensors]))
            with tf.device("CPU:0"):
                return [tf.convert_to_tensor(array) for array in arrays]
        with tf.device("CPU:0"):
            results = self._in_graph(start, finish, tensors, dtypes, lane)
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)
        return results

    def _in_graph(
        self,
        start: Start,
        finish: Finish,
        tensors: Sequence[tf.Tensor],
        dtypes: Sequence[tf.DType],
        lane: int,
    ) -> list[tf.Tensor]:
        order = "all" if self._ordered else f"lane {lane}"
        with tf.control_dependencies(lane_order.previous(f"start {order}")):
            number = tf.numpy_function(
                lambda *arrays: np.int64(start(arrays)), list(tensors), tf.int64, name="start"
            )
        lane_order.remember(f"start {order}", number.op)
        _upstream.run_independently(number.op)
        with tf.control_dependencies(lane_order.previous("finish")):
            results = tf.numpy_function(finish, [number], list(dtypes), name="finish")
        lane_order.remember("finish", results[0].op)
        _upstream.run_independently(results[0].op)
        return list(results)


def _as_array(tensor: tf.Tensor) -> Any:
    if tensor.shape.rank == 0:
        return np.asarray(tensor.numpy())  # a scalar: bfloat16 has no other way
    return np.asarray(tensor)  # a view, where `numpy()` makes a copy
