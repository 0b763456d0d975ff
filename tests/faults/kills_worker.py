# SPDX-License-Identifier: Apache-2.0
"""One rank that trains from the newest complete checkpoint until it ends, or is killed.

`kills_worker.py FOLDER EPOCHS RANK PLACE`: where RANK is killed by SIGKILL, or -1 and "nowhere".
"""

import io
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import npu_keras
from npu_keras import distribute

STEPS, BATCH, TIMEOUT_S = 4, 4, 20
BAD = (2, 3, 9, 14, 21)  # steps whose batch has an infinity, in every 24
PLACES = ("before the first step", "in a collective", "between steps", "while saving")


def manager():
    return npu_keras.ExponentialUpdateLossScaleManager(64.0, 3, 1, decr_ratio=0.5)


def batches(first, count):
    """The batches of all ranks together, from a step on."""
    rng = np.random.default_rng(7)
    pool = rng.standard_normal((24, BATCH, 3)).astype("float32")
    pool[list(BAD), -1, 0] = np.inf
    return pool[np.arange(first, first + count) % 24]


def newest(folder):
    """The newest checkpoint of rank 0 that loads, and how many newer ones did not."""
    broken = 0
    for path in sorted(Path(folder).glob("*-0.keras"), reverse=True):
        try:
            return keras.saving.load_model(path), broken
        except Exception:
            broken += 1
    return None, broken


def fresh_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "tanh"),
                              keras.layers.Dense(1)])  # fmt: skip
    optimizer = npu_keras.NPUOptimizer(
        keras.optimizers.Adam(0.01),
        manager(),
        is_distributed=True,
        is_loss_scale=True,
        aggregation=npu_keras.GradientAggregation(timeout_s=TIMEOUT_S),
    )
    model.compile(optimizer, "mse", jit_compile=False)
    return model


class Killed(keras.callbacks.ModelCheckpoint):
    """Saves after each epoch, and ends the process by SIGKILL where it is told to."""

    def __init__(self, folder, engine, rank, place):
        super().__init__(f"{folder}/{{epoch:04d}}-{engine.rank}.keras")
        self._me, self._place = engine.rank == rank, place
        self._epochs, self._random = 0, random.Random(f"{folder}{time.time()}")

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self._me and self._place == PLACES[0]:
            _die()

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        if self._epochs == 1 and batch == 2 and self._place == PLACES[1]:
            # The others come late, so that this one waits for them in its collective.
            threading.Timer(0.3, _die).start() if self._me else time.sleep(1.0)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self._me and self._epochs == 1 and batch == 1 and self._place == PLACES[2]:
            _die()

    def on_epoch_end(self, epoch, logs=None):
        if self._me and self._epochs == 1 and self._place == PLACES[3]:
            threading.Timer(self._random.uniform(0, 0.05), _die).start()
        super().on_epoch_end(epoch, logs)
        if self._me and self._epochs == 1 and self._place == PLACES[3]:
            time.sleep(0.2)
        self._epochs += 1


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder, epochs, rank, place):
    """Trains up to so many epochs; writes what it found to a file of this rank."""
    engine = distribute.engine(timeout_s=TIMEOUT_S)
    said = io.StringIO()
    logging.getLogger("npu_keras").addHandler(logging.StreamHandler(said))
    model, broken = newest(folder)
    model = model or fresh_model()
    done = int(model.optimizer.attempted_steps) // STEPS
    start = [int(model.optimizer.attempted_steps), float(model.optimizer.loss_scale)]
    data = batches(done * STEPS, (epochs - done) * STEPS)
    share = BATCH // engine.size
    data = data[:, engine.rank * share : (engine.rank + 1) * share]
    data = tf.data.Dataset.from_tensor_slices((data, data.sum(-1, keepdims=True)))
    error = ""
    try:
        model.fit(
            data,
            initial_epoch=done,
            epochs=epochs,
            steps_per_epoch=STEPS,
            shuffle=False,
            verbose=0,
            callbacks=[Killed(folder, engine, rank, place)],
        )
    except Exception as raised:
        engine.shutdown()  # as at the end of a script: says who is to blame, if it can
        error = f"{' '.join(str(raised).split())} LOG {said.getvalue()}"
    optimizer = model.optimizer
    found = {
        "start": start,
        "broken": broken,
        "error": error,
        "counters": list(optimizer.journal.snapshot()) if not error else [],
        "weights": [np.asarray(weight).tolist() for weight in model.weights],
    }
    Path(folder, f"found-{engine.rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(3 if error else 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
