# SPDX-License-Identifier: Apache-2.0
"""Sizes and repetitions that are not of every day: `python -m tests.faults.growth [NAME ...]`.

Without names all of them run, each in a process of its own, and each prints one line.
"""

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

import npu_keras

INF = float("inf")


def optimizer(inner=None):
    manager = npu_keras.ExponentialUpdateLossScaleManager(8.0, 1000, 1, decr_ratio=0.5)
    return npu_keras.NPUOptimizer(inner or keras.optimizers.SGD(1.0), manager, is_loss_scale=True)


def resident_mebibytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_gibibytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def steps(ours, variables, losses):
    """Steps with `loss * variable` summed over all variables, in one `tf.function`.

    Returns:
        The seconds that each took.
    """
    ours.build(variables)

    @tf.function(autograph=False)
    def step(factor):
        with tf.GradientTape() as tape:
            loss = ours.scale_loss(tf.add_n([tf.reduce_sum(v.value) for v in variables]) * factor)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        ours.apply(gradients, variables)

    taken = []
    for factor in losses:
        since = time.perf_counter()
        step(tf.constant(factor))
        taken.append(time.perf_counter() - since)
    return taken


def many_variables(count=10_000):
    """As many variables as a large model has; one good step, one bad one, one good one."""
    variables = [keras.Variable(np.ones(2, "float32")) for _ in range(count)]
    ours = optimizer()
    first, *_, last = steps(ours, variables, [1.0, INF, 1.0])
    assert {float(value) for v in variables for value in np.asarray(v)} == {-1.0}
    counts = ours.journal.overflows_by_variable()
    assert list(counts.values()) == [1] * count
    return (
        f"{count} variables: 2 steps applied, 1 skipped, every one of them named after it; "
        f"first step {first:.0f} s, last {last:.2f} s"
    )


def one_gibibyte():
    """A variable of 1 GiB, with a gradient as large."""
    variable = keras.Variable(tf.ones([2**28]))
    ours = optimizer()
    steps(ours, [variable], [1.0, INF, 2.0])
    assert {float(variable.value[0]), float(variable.value[-1])} == {-2.0}
    assert (int(ours.skipped_steps), float(ours.loss_scale)) == (1, 4.0)
    return f"1 variable of 1 GiB: 2 steps applied, 1 skipped, peak {peak_gibibytes():.1f} GiB"


def rows_of_one_gibibyte():
    """A table of 1 GiB of which a few rows get a gradient: nothing becomes dense."""
    table = keras.Variable(tf.ones([2**20, 2**8]))
    ours = optimizer()

    @tf.function(autograph=False)
    def step(factor):
        with tf.GradientTape() as tape:
            loss = ours.scale_loss(tf.reduce_sum(tf.gather(table.value, [3, 3, 7])) * factor)
        ours.apply(tape.gradient(loss, [table.value]), [table])

    before = peak_gibibytes()
    for factor in (1.0, INF, 1.0):
        step(tf.constant(factor))
    assert np.asarray(tf.gather(table.value, [2, 3, 7]))[:, 0].tolist() == [1.0, -3.0, -1.0]
    more = peak_gibibytes() - before
    assert more < 0.3
    return f"rows of a table of 1 GiB: 2 steps applied, 1 skipped, {more:.2f} GiB more at the peak"


def no_variables():
    """A model in which nothing is trained."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Rescaling(2.0)])
    model.compile(optimizer(), "mse")
    logger = npu_keras.callbacks.LossScaleLogger(verbose=0)
    history = model.fit(np.ones((8, 2)), np.ones((8, 2)), verbose=0, callbacks=[logger])
    assert int(model.optimizer.attempted_steps) == 0
    return f"0 variables: `fit` gives a loss of {history.history['loss'][0]:g} and takes no step"


class Left(NamedTuple):
    """What is there after some rounds: objects of all kinds, and optimizers of those rounds."""

    graphs: int
    variables: int
    mebibytes: float
    alive: int


def rounds(count, folder):
    """Builds, trains, saves, loads and trains again; returns what is left."""
    made = [_round(Path(folder) / "model.keras") for _ in range(count)]
    keras.backend.clear_session()
    gc.collect()
    objects = gc.get_objects()
    return Left(
        sum(isinstance(each, FuncGraph) for each in objects),
        sum(isinstance(each, keras.Variable) for each in objects),
        resident_mebibytes(),
        sum(each() is not None for each in made),
    )


def _round(path):
    x = np.ones((4, 2), "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ours = optimizer(keras.optimizers.Adam())
    for _ in range(2):  # the same optimizer in a model that is compiled again
        model.compile(ours, "mse")
        model.fit(x, x[:, :1], verbose=0, callbacks=[npu_keras.callbacks.LossScaleLogger()])
    model.save(path)
    loaded = keras.saving.load_model(path)
    loaded.fit(x, x[:, :1], verbose=0)
    assert int(loaded.optimizer.attempted_steps) == 3
    return weakref.ref(ours)


def repeated(count=30):
    """Compile, fit, save, load and fit, again and again in one process."""
    with tempfile.TemporaryDirectory() as folder:
        warm, last = rounds(count // 5, folder), rounds(count - count // 5, folder)
    assert (last.alive, last.graphs, last.variables) == (0, 0, 0)
    grown = (last.mebibytes - warm.mebibytes) / (count - count // 5)
    return (
        f"{count} times compile, fit, save, load, fit: no graph, variable or optimizer is left; "
        f"{grown:.2f} MiB more each time"
    )


ALL = [many_variables, one_gibibyte, rows_of_one_gibibyte, no_variables, repeated]


def main(names):
    for check in ALL:
        if len(names) == 1 and check.__name__ in names:
            print(check(), flush=True)
        elif not names or check.__name__ in names:
            command = [sys.executable, "-m", "tests.faults.growth", check.__name__]
            subprocess.run(command, check=True, timeout=1800)


if __name__ == "__main__":
    main(sys.argv[1:])
