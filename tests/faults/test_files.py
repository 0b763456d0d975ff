# SPDX-License-Identifier: Apache-2.0
"""What becomes of files, and of training, when they cannot be written or were left half."""

import contextlib
import inspect
import logging
import resource
import signal
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import npu_keras
from npu_keras.event_log import read_events

X = np.random.default_rng(0).standard_normal((8, 2)).astype("float32")
X[6] = np.inf  # in the last of four batches

HAS_SECOND_BACKUP = (
    "double_checkpoint" in inspect.signature(keras.callbacks.BackupAndRestore).parameters
)


@contextlib.contextmanager
def full_disk(size):
    """No file grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def compiled():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    manager = npu_keras.ExponentialUpdateLossScaleManager(8.0, 2, 1, decr_ratio=0.5)
    optimizer = npu_keras.NPUOptimizer(keras.optimizers.Adam(), manager, is_loss_scale=True)
    model.compile(optimizer, "mse")
    return model


def fit(model, *callbacks, epochs=1):
    y = np.ones((8, 1), "float32")
    return model.fit(X, y, 2, epochs, 0, shuffle=False, callbacks=list(callbacks))


def counters(optimizer):
    snapshot = optimizer.journal.snapshot()
    return (snapshot.attempted_steps, snapshot.skipped_steps, snapshot.loss_scale)


@pytest.mark.timeout(300)
def test_training_goes_on_when_the_disk_is_full(tmp_path, caplog):
    model = compiled()
    logger = npu_keras.callbacks.LossScaleLogger(
        jsonl=tmp_path / "events.jsonl", log_dir=tmp_path, log_freq=1, verbose=0
    )
    with full_disk(1500):
        fit(model, logger, epochs=8)
    assert counters(model.optimizer)[:2] == (32, 8)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 2, warnings
    assert all(text.endswith("Training goes on without.") for text in warnings)
    assert {"events", "scalars"} == {word for text in warnings for word in text.split()} & {
        "events",
        "scalars",
    }
    file = read_events(tmp_path / "events.jsonl")
    assert 0 < len(file.events) < 16
    assert len(file.damaged_lines) <= 1
    assert len(logger.to_records()) == 16  # a growth and an overflow an epoch


class Trained(NamedTuple):
    """A model after three epochs, what it was after each, and the folder of its backup."""

    model: keras.Model
    epochs: list
    folder: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model, epochs, folder = compiled(), [], tmp_path_factory.mktemp("backup")

    class Record(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append((counters(self.model.optimizer), self.model.get_weights()))

    keep = {"double_checkpoint": True} if HAS_SECOND_BACKUP else {}
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False, **keep)
    fit(model, Record(), backup, epochs=3)
    return Trained(model, epochs, folder)


@pytest.mark.skipif(not HAS_SECOND_BACKUP, reason="this Keras keeps no second backup")
@pytest.mark.timeout(300)
def test_a_backup_that_a_kill_left_half_gives_way_to_the_one_before(trained):
    path = trained.folder / "latest.weights.h5"
    whole = path.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 1, len(whole)):
        path.write_bytes(whole[:size])
        loaded = compiled()
        callback = keras.callbacks.BackupAndRestore(trained.folder, double_checkpoint=True)
        callback.set_model(loaded)
        callback.on_train_begin()
        wanted, weights = trained.epochs[2 if size == len(whole) else 1]
        assert counters(loaded.optimizer) == wanted
        for ours, right in zip(loaded.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(ours, right)
        path.write_bytes(whole)


@pytest.mark.timeout(300)
def test_the_newest_whole_checkpoint_of_tensorflow_is_found(trained, tmp_path):
    """A kill before the last rename leaves files that the list of checkpoints does not name."""
    model = trained.model
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    newest = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=2).save()
    (tmp_path / "ckpt-2.data-00000-of-00001").write_bytes(b"half")
    assert tf.train.latest_checkpoint(tmp_path) == newest
    loaded = compiled()
    loaded.optimizer.build(loaded.trainable_variables)
    tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).restore(newest)
    assert counters(loaded.optimizer) == counters(model.optimizer) == trained.epochs[2][0]
