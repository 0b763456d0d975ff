# SPDX-License-Identifier: Apache-2.0
"""What every engine must do, run by each rank: `engine_worker.py NAME SIZE [serialized]`."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from npu_keras import engines

NAME, SIZE = sys.argv[1], int(sys.argv[2])
FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
INTEGERS = (tf.int8, tf.int32, tf.int64, tf.uint8)
REDUCE = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}
# One thread between ops: an engine that blocked it with one lane would never start the others.
tf.config.threading.set_inter_op_parallelism_threads(1)
if "serialized" in sys.argv:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"

engine = engines.find(timeout_s=30)
assert (engine.name, engine.size) == (NAME, SIZE), engine
assert engines.find(NAME) is engine
RANK = engine.rank


def same(actual, expected):
    actual, expected = np.asarray(actual.numpy()), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(actual, expected)


def both(call, inputs):
    """Runs `call` eagerly and in a graph; all ranks must see the same, bit for bit."""
    eager, graph = call(inputs), tf.function(call, autograph=False)(inputs)
    for e, g in zip(eager, graph, strict=True):
        same(e, g.numpy())
    digests = [np.asarray(tensor.numpy()).tobytes().hex() for tensor in graph]
    assert engine.exchange(digests) == [digests] * SIZE
    return graph


def inputs_of(rank, dtype):
    return [
        (np.arange(5) * (rank + 1) % 7).astype(dtype),
        np.full((), rank + 1).astype(dtype),
        np.zeros((0, 3), dtype),
        np.full((300, 101), rank % 3).astype(dtype),
    ]


def check_all_reduce():
    for dtype in FLOATS + INTEGERS:
        of_ranks = [inputs_of(rank, dtype.as_numpy_dtype) for rank in range(SIZE)]

        def call(tensors):
            results = []
            for lane, reduction in enumerate(REDUCE):
                results += engine.all_reduce(tensors, reduction=reduction, lane=lane, label="x")
            return results

        results = iter(both(call, [tf.constant(array) for array in of_ranks[RANK]]))
        for reduce in REDUCE.values():
            for arrays in zip(*of_ranks, strict=True):
                same(next(results), np.asarray(reduce(arrays)).astype(dtype.as_numpy_dtype))
    assert engine.all_reduce([], reduction="sum", lane=0, label="nothing") == []


def check_not_finite():
    tensor = tf.constant([1.0, np.inf if RANK == 0 else 1.0, np.nan if RANK == SIZE - 1 else 1.0])
    for dtype in FLOATS:
        [total] = engine.all_reduce(
            [tf.cast(tensor, dtype)], reduction="sum", lane=0, label="not finite"
        )
        assert np.isfinite(tf.cast(total, tf.float32)).tolist() == [True, False, False]
    [total] = engine.all_reduce(
        [tf.fill([3], tf.constant(60000.0, tf.float16))], reduction="sum", lane=1, label="too large"
    )
    assert np.isinf(total.numpy()).all()


def check_gather_and_broadcast():
    dtypes = (tf.float32, tf.bfloat16, tf.uint8, tf.bool)
    for rows_of in (lambda rank: rank, lambda rank: 3 - min(rank, 3), lambda rank: 0):
        of_ranks = [
            [tf.cast(tf.fill([rows_of(rank), 3], rank), dtype) for dtype in dtypes]
            for rank in range(SIZE)
        ]

        def call(tensors):
            return [
                engine.all_gather(tensor, lane=lane, label="rows")
                for lane, tensor in enumerate(tensors)
            ]

        of_dtypes = zip(*of_ranks, strict=True)
        for result, parts in zip(both(call, of_ranks[RANK]), of_dtypes, strict=True):
            same(result, np.concatenate([part.numpy() for part in parts]))
    values = [tf.constant([-0.0, np.nan, 1.5]), tf.constant(7, tf.int8), tf.constant([True, False])]
    own = values if RANK == SIZE - 1 else [tf.zeros_like(value) for value in values]

    def call(tensors):
        return engine.broadcast(tensors, root_rank=SIZE - 1, lane=3, label="weights")

    for result, value in zip(both(call, own), values, strict=True):
        assert result.numpy().tobytes() == value.numpy().tobytes()


def check_results_stay():
    """A result is not written over by later ones, however long it is kept."""

    def call(tensors):
        return engine.all_reduce(tensors, reduction="sum", lane=4, label="kept")

    for run in (call, tf.function(call, autograph=False)):
        kept = [run([tf.fill([100_000], float(number))])[0] for number in range(6)]
        for number, tensor in enumerate(kept):
            same(tensor, np.full(100_000, SIZE * number, np.float32))


def check_lanes(stride):
    """Twenty lanes, started in an order that differs between ranks, then some twice."""
    order = np.random.default_rng(RANK).permutation(20)

    @tf.function(autograph=False)
    def step(start):
        chain, inputs = start, {}
        for lane in order:
            chain = tf.math.sin(chain) * 0.0 + 1.0
            inputs[lane] = tf.fill([50 * (lane + 1)], float(lane)) * chain[0]
        first = [
            engine.all_reduce([inputs[lane]], reduction="sum", lane=stride * lane, label=str(lane))[
                0
            ]
            for lane in range(20)
        ]
        second = engine.all_reduce([start + RANK], reduction="max", lane=3 * stride, label="again")
        return first, second

    for _ in range(5):
        first, second = step(tf.ones([40000]))
        for lane, tensor in enumerate(first):
            same(tensor, np.full(50 * (lane + 1), SIZE * lane, np.float32))
        same(second[0], np.full(40000, SIZE, np.float32))


class Summing(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        means = [grad / SIZE for grad in grads]
        grads = engine.all_reduce(means, reduction="sum", lane=0, label="gradients")
        super().apply(grads, trainable_variables)


def check_fit():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )
    x = np.random.default_rng(1).normal(size=(24 * SIZE, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    initial = model.get_weights()
    model.compile(Summing(0.1), "mse")
    model.fit(x[RANK::SIZE], y[RANK::SIZE], batch_size=8, epochs=2, shuffle=False, verbose=0)
    weights = model.get_weights()
    assert (
        engine.exchange([w.tobytes().hex() for w in weights])
        == [[w.tobytes().hex() for w in weights]] * SIZE
    )
    model.set_weights(initial)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=8 * SIZE, epochs=2, shuffle=False, verbose=0)
    for actual, expected in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def check_exchange():
    assert engine.exchange({"rank": RANK, "text": "é"}) == [
        {"rank": rank, "text": "é"} for rank in range(SIZE)
    ]
    engine.barrier("here")
    assert len(set(engine.exchange("x" * 300_000))) == 1


check_exchange()
check_all_reduce()
check_not_finite()
check_gather_and_broadcast()
check_results_stay()
check_lanes(1)
check_lanes(3232)  # the numbers that many models and optimizers come to
check_fit()
engine.shutdown()
with pytest.raises(engines.EngineError, match="shut down"):
    engine.all_reduce([tf.ones(1)], reduction="sum", lane=0, label="late")
print("all is well")
