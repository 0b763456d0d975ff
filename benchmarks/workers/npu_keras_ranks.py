# SPDX-License-Identifier: Apache-2.0
"""A rank of npu_keras: `fit`, and aggregation alone, over the engine it was started with."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np
import tensorflow as tf

import npu_keras
from benchmarks import models
from benchmarks.workers.protocol import serve
from npu_keras import engines


def fit(optimizer):
    """A function of a number of steps that fits the perceptron."""
    function = models.stepper(optimizer)
    return lambda steps: [function() for _ in range(steps)]


def distributed(optimizer, sharded=False):
    """The optimizer with aggregation over ranks."""
    return npu_keras.NPUDistributedOptimizer(optimizer, sharded)


def slot_bytes(optimizer):
    """A function that returns the size of a new optimizer's variables."""
    model = models.perceptron()
    optimizer.build(model.trainable_variables)
    size = sum(float(np.prod(v.shape)) * 4 for v in optimizer.variables)
    return lambda steps: size


def scaled(mode):
    """SGD that aggregates and scales the loss."""
    manager = npu_keras.ExponentialUpdateLossScaleManager(2.0**10, 2000)
    return npu_keras.NPUOptimizer(
        keras.optimizers.SGD(1e-4), manager, True, True, overflow_mode=mode
    )


def communicating(tail=False, compression=None):
    """A step of Adam on eight layers of 4 MB each, with a loss scale."""
    manager = npu_keras.ExponentialUpdateLossScaleManager(2.0**10, 2000)
    aggregation = npu_keras.GradientAggregation(compression=compression, split=4 * 2**20)
    optimizer = npu_keras.NPUOptimizer(
        keras.optimizers.Adam(1e-4), manager, True, True, tail, aggregation=aggregation
    )
    function = models.stepper(optimizer, models.eight_layers)
    return lambda steps: [function() for _ in range(steps)]


def reduction(count, elements):
    """A function of a number of steps that reduces some tensors from a `tf.function`."""
    tensors = [tf.random.normal([elements]) for _ in range(count)]
    sizes = [elements] * count
    aggregation = npu_keras.GradientAggregation()
    engine = aggregation.engine()
    variables = [tf.Variable(tensor) for tensor in tensors]
    plan = aggregation.plan(variables, engine)
    first = 1000 + count * 3

    @tf.function(autograph=False)
    def reduce():
        out = []
        for lane, bucket in enumerate(plan.buckets):
            part = [tensors[i] for i in bucket.indices]
            out += engine.all_reduce(part, reduction="sum", lane=first + lane, label="benchmark")
        return out

    assert len(sizes) == len(reduce())
    return lambda steps: [reduce() for _ in range(steps)]


def raw(count, elements):
    """The same by mpi4py alone, in place, tensor by tensor."""
    import numpy as np
    from mpi4py import MPI

    arrays = [np.ones(elements, "float32") for _ in range(count)]

    def reduce(steps):
        for _ in range(steps):
            for array in arrays:
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)

    return reduce


def main():
    """Serves what it can do."""
    rank = engines.find().rank  # before TensorFlow makes its first tensor
    makers = {
        "alone": lambda: fit(keras.optimizers.SGD(1e-4)),
        "fit": lambda: fit(distributed(keras.optimizers.SGD(1e-4))),
        "scaled": lambda: fit(scaled("inf_nan")),
        "saturation": lambda: fit(scaled("saturation")),
        "adam": lambda: fit(distributed(keras.optimizers.Adam(1e-4))),
        "sharded": lambda: fit(distributed(keras.optimizers.Adam(1e-4), True)),
        "no_tail": communicating,
        "tail": lambda: communicating(tail=True),
        "bf16": lambda: communicating(compression="bf16"),
        "slots": lambda: slot_bytes(distributed(keras.optimizers.Adam())),
        "shard": lambda: slot_bytes(distributed(keras.optimizers.Adam(), True)),
        "reduce_20": lambda: reduction(20, 473_000),
        "reduce_400": lambda: reduction(400, 1024),
        "raw_20": lambda: raw(20, 473_000),
        "raw_400": lambda: raw(400, 1024),
    }
    serve(makers, rank)


main()
