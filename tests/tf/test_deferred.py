# SPDX-License-Identifier: Apache-2.0
"""Python collectives as two ops of a graph."""

import time

import numpy as np
import pytest
import tensorflow as tf

from npu_keras.engines.deferred import Deferred


class Recorder:
    """A transfer that doubles its arrays and writes down what happens."""

    def __init__(self, ordered=False):
        self.deferred, self.events, self.pending = Deferred(ordered), [], {}

    def double(self, tensors, name, lane):
        def start(arrays):
            self.events.append(f"start {name}")
            number = len(self.pending) + 1
            self.pending[number] = (name, [array + array for array in arrays])
            return number

        def finish(number):
            done, arrays = self.pending[int(number)]
            self.events.append(f"finish {done}")
            return arrays

        shapes, dtypes = [t.shape for t in tensors], [t.dtype for t in tensors]
        return self.deferred.run(start, finish, tensors, shapes, dtypes, lane)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16, tf.int8, tf.int64])
def test_eager_and_graph_give_the_same(dtype):
    recorder = Recorder()
    tensors = [tf.cast([1, 2], dtype), tf.cast(3, dtype), tf.zeros((0, 2), dtype)]
    eager = recorder.double(tensors, "x", 0)
    graph = tf.function(lambda t: recorder.double(t, "x", 0), autograph=False)(tensors)
    for results in (eager, graph):
        assert [r.numpy().tolist() for r in results] == [[2, 4], 6, []]
        assert [(r.dtype, r.shape) for r in results] == [(t.dtype, t.shape) for t in tensors]


def traced(recorder):
    """Two transfers, of which the first traced has its tensors last."""

    @tf.function(autograph=False)
    def step(x):
        slow = tf.numpy_function(lambda a: a if recorder.wait() else a, [x], tf.float32)
        slow.set_shape(x.shape)
        return recorder.double([slow], "a", 0) + recorder.double([x], "b", 1)

    return step


def test_starts_need_no_order_and_finishes_keep_that_of_tracing():
    recorder = Recorder()

    def wait():
        for _ in range(500):
            if "start b" in recorder.events:
                return True
            time.sleep(0.01)
        raise AssertionError("b has to start before the tensors of a are there")

    recorder.wait = wait
    results = traced(recorder)(tf.ones(3))
    assert [r.numpy().tolist() for r in results] == [[2.0] * 3, [2.0] * 3]
    assert recorder.events == ["start b", "start a", "finish a", "finish b"]


def test_ordered_starts_keep_the_order_of_tracing():
    recorder = Recorder(ordered=True)
    recorder.wait = lambda: True
    traced(recorder)(tf.ones(3))
    starts = [event for event in recorder.events if event.startswith("start")]
    assert starts == ["start a", "start b"]


def test_starts_of_one_lane_keep_the_order_of_tracing_inside_and_outside_of_a_branch():
    recorder = Recorder()

    @tf.function(autograph=False)
    def step(x, choice):
        recorder.double([x], "outer", 0)
        [y] = tf.cond(choice, lambda: recorder.double([x], "inner", 0), lambda: [x])
        recorder.double([tf.math.sin(y)], "last", 0)
        return recorder.double([x], "again", 0)

    step(tf.ones(2), tf.constant(True))
    starts = [event for event in recorder.events if event.startswith("start")]
    assert starts.index("start outer") < starts.index("start last") < starts.index("start again")
    assert set(starts) == {"start outer", "start inner", "start last", "start again"}


def test_an_error_reaches_the_caller_with_its_message():
    deferred = Deferred()

    def fail(arrays):
        raise RuntimeError("rank 1 is missing")

    def call(tensors):
        return deferred.run(fail, list, tensors, [tensors[0].shape], [tf.float32], 0)

    with pytest.raises(RuntimeError, match="rank 1 is missing"):
        call([tf.ones(2)])
    with pytest.raises(tf.errors.OpError, match="rank 1 is missing"):
        tf.function(call, autograph=False)([tf.ones(2)])


def test_arrays_are_views_of_the_tensors():
    seen = []

    def start(arrays):
        seen.append(arrays[0].__array_interface__["data"][0])
        return 1

    tensor = tf.constant(np.arange(1000.0))
    Deferred().run(
        start, lambda number: [np.zeros(1)], [tensor], [tf.TensorShape([1])], [tf.float64], 0
    )
    assert seen == [np.asarray(tensor).__array_interface__["data"][0]]
