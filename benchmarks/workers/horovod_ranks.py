# SPDX-License-Identifier: Apache-2.0
"""A rank of Horovod 0.28.1 on TensorFlow 2.12: `fit`, and a reduction. Runs on Python 3.9."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf
from protocol import serve

BATCH = 32


def fit(optimizer):
    """A function of a number of steps: the step of `fit`."""
    layers = [tf.keras.layers.Dense(2048, "relu") for _ in range(3)]
    model = tf.keras.Sequential([tf.keras.Input((512,)), *layers, tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    step = model.make_train_function()
    x = np.random.default_rng(0).standard_normal((BATCH, 512)).astype("float32")
    y = np.arange(BATCH) % 10
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    return lambda steps: [step(batches) for _ in range(steps)]


def reduction(count, elements):
    """A function of a number of steps that reduces some tensors."""
    tensors = [tf.random.normal([elements]) for _ in range(count)]

    @tf.function
    def reduce():
        # Each by itself, as its optimizer does; it fuses what is ready at the same time.
        return [hvd.allreduce(t, op=hvd.Sum, name=f"tensor_{i}") for i, t in enumerate(tensors)]

    return lambda steps: [reduce() for _ in range(steps)]


def main():
    """Serves what it can do."""
    hvd.init()
    makers = {
        "alone": lambda: fit(tf.keras.optimizers.SGD(1e-4)),
        "fit": lambda: fit(hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(1e-4))),
        "reduce_400": lambda: reduction(400, 1024),
    }
    serve(makers, hvd.rank())


main()
