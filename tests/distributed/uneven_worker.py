# SPDX-License-Identifier: Apache-2.0
"""Rank 0 has five batches, rank 1 four: `uneven_worker.py together|stays|leaves`."""

import hashlib
import logging
import os
import re
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import npu_keras
from npu_keras import distribute, engines
from npu_keras.callbacks import BroadcastVariables, LossScaleLogger, StepLimit

MODE = sys.argv[1]
TIMEOUT_S = 60 if MODE == "together" else 8
engine = distribute.engine(timeout_s=TIMEOUT_S)
RANK = engine.rank


def data(batches=5 - RANK, bad=False):
    x = np.random.default_rng(RANK).normal(size=(8 * batches, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    if bad:
        y[8:16] = 1e38  # times the loss scale beyond float32
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def model_of(seed, **kwargs):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    manager = npu_keras.ExponentialUpdateLossScaleManager(2.0**10, 1000, 1, 2, 0.5)
    optimizer = npu_keras.NPUOptimizer(
        keras.optimizers.Adam(0.01), manager, is_distributed=True, is_loss_scale=True
    )
    model.compile(optimizer, loss="mse", jit_compile=False, **kwargs)
    return model


def fit(model, dataset, callbacks=(), **kwargs):
    kwargs = {"shuffle": False, "verbose": 0, **kwargs}
    return model.fit(dataset, callbacks=list(callbacks), **kwargs).history


def digest(variables):
    return hashlib.sha256(b"".join(np.array(v).tobytes() for v in variables)).hexdigest()


def equal_everywhere(value):
    everyone = engine.exchange(value)
    assert everyone == [value] * engine.size, everyone


def check_trained(model, steps):
    assert int(model.optimizer.attempted_steps) == steps
    equal_everywhere(digest([*model.trainable_variables, *model.optimizer.variables]))


def check_equal_steps():
    cut = distribute.equal_steps(data())
    assert int(cut.cardinality()) == 4
    model = model_of(1)
    fit(model, cut, epochs=2)
    check_trained(model, 8)
    for unknown, who in ((RANK == 1, "[1]"), (True, "[0, 1]")):
        dataset = data().filter(lambda *_: True) if unknown else data()
        with pytest.raises(
            ValueError, match=re.escape(f"on ranks {who}. Cut it with `dataset.take")
        ):
            distribute.equal_steps(dataset)
    with pytest.raises(ValueError, match="unknown or infinite"):
        distribute.equal_steps(data().repeat())


def check_step_limit():
    assert StepLimit().steps == 4  # from the environment
    for steps, epochs, limit in ((1, 1, StepLimit()), (1, 2, StepLimit(7)), (2, 1, StepLimit(4))):
        model = model_of(1, steps_per_execution=steps)
        fit(model, data(), [limit], epochs=epochs)
        check_trained(model, limit.steps)


class Before(keras.callbacks.Callback):
    """Notes what rank 1 has, and what is there when the first batch begins."""

    def on_train_begin(self, logs=None):
        self.expected = engine.exchange(self.now())[1]

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.found = self.now()

    def now(self):
        return digest([*self.model.weights, *self.model.optimizer.variables])


def check_broadcast():
    model = model_of(RANK)
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    optimizer.loss_scale.assign(2.0 ** (5 + RANK))
    optimizer.attempted_steps.assign(100 * RANK)
    model.layers[1].moving_mean.assign(tf.fill([3], 1.0 + RANK))
    before = Before()
    fit(model, data(4), [before, BroadcastVariables(root_rank=1)])
    assert before.found == before.expected
    assert len(set(engine.exchange(before.expected))) == 1
    assert float(optimizer.loss_scale) == 2.0**6
    assert int(optimizer.attempted_steps) == 104
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2 + RANK)])
    other.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="The first difference is variable 0: rank 0 has"):
        fit(other, data(4), [BroadcastVariables()])
    with pytest.raises(ValueError, match="root_rank=2"):
        fit(model, data(4), [BroadcastVariables(2)])


def check_logger():
    """Rank 1 overflows, rank 0 speaks."""
    path = f"events.{RANK}.jsonl"
    model = model_of(1)
    history = fit(model, data(4, bad=RANK == 1), [LossScaleLogger(jsonl=path)])
    assert history["skipped_steps"] == [1.0]
    assert os.path.exists(path) == (RANK == 0)
    if RANK == 0:
        with open(path) as file:
            print("event", file.read().strip())
    alone = model_of(1)
    single = npu_keras.NPUOptimizer(
        keras.optimizers.SGD(), npu_keras.FixedLossScaleManager(2.0), is_loss_scale=True
    )
    alone.compile(single, loss="mse", jit_compile=False)
    fit(alone, data(1), [LossScaleLogger(jsonl=path)])
    assert os.path.exists(path)


if MODE == "together":
    logging.basicConfig(level=logging.INFO, format="log %(message)s")
    check_equal_steps()
    check_step_limit()
    check_broadcast()
    check_logger()
    print("all is well")
    sys.exit()


class Clock(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.steps, self.since = batch + 1, time.monotonic()


clock = Clock()
try:
    fit(model_of(1), data(), [clock])
    if MODE == "stays":
        distribute.barrier()
except (engines.EngineTimeout, tf.errors.OpError) as error:
    print("waited", time.monotonic() - clock.since)
    print("error", " ".join(str(error).split()))
    sys.exit(3)
finally:
    print("steps", clock.steps)
