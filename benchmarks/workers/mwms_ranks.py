# SPDX-License-Identifier: Apache-2.0
"""A rank of `MultiWorkerMirroredStrategy` with tf_keras: `fit`, a custom loop, a reduction."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks.workers.protocol import serve

BATCH = 32


def perceptron():
    """The model of all comparisons."""
    layers = [tf_keras.layers.Dense(2048, "relu") for _ in range(3)]
    return tf_keras.Sequential([tf_keras.Input((512,)), *layers, tf_keras.layers.Dense(10)])


def dataset(ranks):
    """Endless batches, as `fit` would be given them."""
    x = np.random.default_rng(0).standard_normal((BATCH * ranks, 512)).astype("float32")
    y = np.arange(BATCH * ranks) % 10
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.unbatch().batch(BATCH * ranks, drop_remainder=True).with_options(options)


def fit(strategy):
    """A function of a number of steps: the step of `fit` over a distributed dataset."""
    with strategy.scope():
        model = perceptron()
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.SGD(1e-4), loss)
    step = model.make_train_function()
    batches = iter(strategy.experimental_distribute_dataset(dataset(strategy.num_replicas_in_sync)))
    return lambda steps: [step(batches) for _ in range(steps)]


def loop(strategy, mebibytes):
    """A function of a number of steps: a custom loop with packs of a size."""
    with strategy.scope():
        model = perceptron()
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        optimizer = tf_keras.optimizers.SGD(1e-4)
        optimizer.build(model.trainable_variables)
    ranks = strategy.num_replicas_in_sync
    batches = iter(strategy.experimental_distribute_dataset(dataset(ranks)))
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=mebibytes << 20)

    def in_replica(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True)) / (BATCH * ranks)
        gradients = tape.gradient(value, model.trainable_variables)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", gradients, options=options)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)

    @tf.function
    def step():
        strategy.run(in_replica, args=next(batches))

    return lambda steps: [step() for _ in range(steps)]


def reduction(strategy, count, elements):
    """A function of a number of steps that reduces some tensors."""
    tensors = [tf.random.normal([elements]) for _ in range(count)]

    @tf.function
    def reduce():
        def in_replica():
            return tf.distribute.get_replica_context().all_reduce("sum", tensors)

        return strategy.run(in_replica)

    return lambda steps: [reduce() for _ in range(steps)]


def main():
    """Serves what it can do."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    makers = {
        "fit": lambda: fit(strategy),
        "loop_4": lambda: loop(strategy, 4),
        "loop_16": lambda: loop(strategy, 16),
        "reduce_400": lambda: reduction(strategy, 400, 1024),
    }
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    serve(makers, rank)


main()
