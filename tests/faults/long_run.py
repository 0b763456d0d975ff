# SPDX-License-Identifier: Apache-2.0
"""Many steps of a tiny model: `python -m tests.faults.long_run --steps 200000`.

Prints what a table of long runs needs: memory, traces, counters and events against what the
manager's rule says. It ends with an error if any of them is not as it has to be.
"""

import argparse
import gc
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import npu_keras
from npu_keras.event_log import read_events
from npu_keras.loss_scale import ScaleState

EPOCH, AT_ONCE, BATCH = 1000, 100, 2
BAD = (3, 400, 999)  # steps of each epoch, from 0
WARM_UP = 5  # epochs after which memory is compared with


class Found(NamedTuple):
    """What a run has shown."""

    attempted: int
    skipped: int
    applied: int
    scale: float
    events: list
    lost: int
    damaged: int
    traces_first_epoch: int
    traces: int
    mebibytes: list
    steps_per_s: float


class Watch(keras.callbacks.Callback):
    """Traces, memory and time at the end of each epoch."""

    def __init__(self, layer):
        super().__init__()
        self._layer, self.traces, self.mebibytes, self.times = layer, [], [], []

    def on_epoch_end(self, epoch, logs=None):
        self.traces.append(self._layer.traces)
        self.times.append(time.perf_counter())
        gc.collect()
        self.mebibytes.append(resident_mebibytes())


class Counted(keras.layers.Dense):
    """A layer that counts how often it is traced."""

    traces = 0

    def call(self, inputs):
        self.traces += 1
        return super().call(inputs)


def resident_mebibytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def manager():
    return npu_keras.ExponentialUpdateLossScaleManager(2.0**10, 300, 1, decr_ratio=0.5)


def expected(epochs):
    """The events of so many epochs, as attempt, kind and both scales; and the last state."""
    rule, state, events = manager(), manager().initial_state(), []
    state = ScaleState(*map(np.asarray, state))
    for number in range(epochs * EPOCH):
        bad = number % EPOCH in BAD
        after = rule.next_state(state, not bad, np)
        moved = float(after.loss_scale) - float(state.loss_scale)
        if bad or moved:
            kind = "grow" if moved > 0 else "back off" if moved < 0 else "skip"
            scales = (float(state.loss_scale), float(after.loss_scale))
            events.append((number + 1, kind, *scales))
        state = after
    return events, state


def train(epochs, folder):
    """Trains for some epochs, and returns what was seen."""
    x = np.random.default_rng(0).standard_normal((EPOCH * BATCH, 3)).astype("float32")
    y = x.sum(axis=1)
    for step in BAD:
        x[step * BATCH] = np.inf
    layer = Counted(1)
    model = keras.Sequential([keras.Input((3,)), layer])
    optimizer = npu_keras.NPUOptimizer(keras.optimizers.SGD(1e-3), manager(), is_loss_scale=True)
    model.compile(optimizer, "mse", steps_per_execution=AT_ONCE)
    path = Path(folder) / "events.jsonl"
    logger = npu_keras.callbacks.LossScaleLogger(jsonl=path, verbose=0)
    watch = Watch(layer)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    model.fit(data, epochs=epochs, verbose=0, shuffle=False, callbacks=[logger, watch])
    assert all(np.isfinite(weight).all() for weight in map(np.asarray, model.weights))
    file = read_events(path)
    seconds = watch.times[-1] - watch.times[0]
    return Found(
        int(optimizer.attempted_steps),
        int(optimizer.skipped_steps),
        int(optimizer.iterations),
        float(optimizer.loss_scale),
        [(e.attempt, e.kind, e.scale_before, e.scale_after) for e in file.events],
        logger._reader.lost,
        len(file.damaged_lines),
        watch.traces[0],
        watch.traces[-1],
        watch.mebibytes,
        (epochs - 1) * EPOCH / seconds,
    )


def check(found, epochs):
    """Raises AssertionError where the run differs from what it has to be."""
    events, state = expected(epochs)
    steps, skipped = epochs * EPOCH, epochs * len(BAD)
    assert (found.attempted, found.skipped, found.applied) == (steps, skipped, steps - skipped)
    assert found.scale == state.loss_scale
    assert found.events == events
    assert (found.lost, found.damaged) == (0, 0)
    assert found.traces == found.traces_first_epoch
    growth = found.mebibytes[-1] / found.mebibytes[min(WARM_UP, epochs) - 1]
    assert growth < 1.05, found.mebibytes
    return growth


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    epochs = parser.parse_args().steps // EPOCH
    with tempfile.TemporaryDirectory() as folder:
        found = train(epochs, folder)
    growth = check(found, epochs)
    print(
        f"steps {found.attempted}, skipped {found.skipped}, events {len(found.events)} of "
        f"{len(found.events)}, memory x {growth:.3f} since step {WARM_UP * EPOCH} "
        f"({found.mebibytes[-1]:.0f} MiB), traces after the first epoch 0, "
        f"{found.steps_per_s:.0f} steps/s"
    )


if __name__ == "__main__":
    main()
