# SPDX-License-Identifier: Apache-2.0
"""`npu_keras.distribute`: collectives for everything that is not a gradient."""

import keras
import numpy as np
import tensorflow as tf
from harness import check, digest, error_of, rank, size

import npu_keras
from npu_keras import distribute


@check
def who_is_here():
    engine = distribute.engine()
    return [distribute.rank(), distribute.size(), engine.name, distribute.engine() is engine]


@check
def reductions():
    own = tf.constant([1.0, -1.0]) * (rank() + 1)
    report = {r: distribute.all_reduce(own, r).numpy().tolist() for r in distribute.REDUCTIONS}
    whole = distribute.all_reduce([tf.constant(3 + rank()), None])
    report["list"] = [None if value is None else value.numpy().tolist() for value in whole]
    report["largest"] = float(distribute.all_reduce(tf.constant(3.4e38)))
    report["float16"] = float(distribute.all_reduce(tf.constant(60000.0, tf.float16)))
    report["a number"] = float(distribute.all_reduce(2.0 + rank()))
    report["bool"] = error_of(lambda: distribute.all_reduce(tf.constant(True)))
    report["unknown"] = error_of(lambda: distribute.all_reduce(own, "median"))

    @tf.function
    def inside(value):
        return distribute.all_reduce([value, value + 1], "sum")

    report["graph"] = [each.numpy().tolist() for each in inside(own)]
    return report


@check
def many_in_a_loop():
    """A call in every batch of a long run must not use up what the transport has."""
    distribute.all_reduce(1.0)
    total, lanes = 0.0, _lanes()
    for _ in range(300):
        total += float(distribute.all_reduce(1.0, "sum"))
    v = keras.Variable([float(rank())])
    for _ in range(30):
        distribute.broadcast([v])
    return {"total": total, "new lanes": _lanes() - lanes}


def _lanes():
    return len(getattr(distribute.engine(), "_channels", []))


@check
def broadcasts():
    keras.utils.set_random_seed(rank())
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
        ]
    )
    model.layers[1].moving_mean.assign(np.full(2, float(rank())))
    different = digest(model.variables)
    distribute.broadcast(model.variables, root_rank=size() - 1)
    flags = [tf.Variable(rank() == 0), tf.Variable(tf.constant(rank(), tf.uint8))]
    distribute.broadcast(flags)
    return {
        "before": different,
        "after": digest(model.variables),
        "mean": np.array(model.layers[1].moving_mean).tolist(),
        "flags": [bool(flags[0]), int(flags[1])],
        "no such rank": error_of(lambda: distribute.broadcast(flags, root_rank=size())),
    }


@check
def sharded_dataset():
    dataset, batch = distribute.shard_and_rebatch_dataset(tf.data.Dataset.range(12), 4 * size())
    error = error_of(
        lambda: distribute.shard_and_rebatch_dataset(tf.data.Dataset.range(8), 2 * size() + 1)
    )
    return {"batch": batch, "mine": [int(x) for x in dataset], "error": error}


@check
def run_config():
    def make(flag):
        return npu_keras.NPUOptimizer(
            keras.optimizers.SGD(0.1), is_distributed=True, is_tailing_optimization=flag
        )

    report = []
    for of_run in (True, False):
        npu_keras.NPURunConfig(is_tailing_optimization=of_run)
        report += [error_of(lambda flag=flag: make(flag)) for flag in (True, False)]
    npu_keras.NPURunConfig.clear()
    report += [error_of(lambda flag=flag: make(flag)) for flag in (True, False)]
    return report
