# SPDX-License-Identifier: Apache-2.0
import csv
import json
import logging
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from logged import batches, fit, scaled_optimizer, small_model

import npu_keras
from npu_keras.callbacks import LossScaleLogger, loss_scale_logger
from npu_keras.callbacks.forward_state import forward_state
from npu_keras.event_log import read_events

KEYS = [
    "loss_scale",
    "skipped_steps",
    "overflow_rate",
    "scale_growths",
    "scale_backoffs",
    "good_steps",
]


def test_every_key_is_there_from_the_first_epoch_on():
    history = fit(small_model(), batches(4), LossScaleLogger(verbose=0), epochs=2).history
    assert {key: history[key] for key in KEYS} == {
        "loss_scale": [2.0**15] * 2,
        "skipped_steps": [0.0, 0.0],
        "overflow_rate": [0.0, 0.0],
        "scale_growths": [0.0, 0.0],
        "scale_backoffs": [0.0, 0.0],
        "good_steps": [4.0, 8.0],
    }
    assert all(type(value) is float for key in KEYS for value in history[key])


def test_totals_add_up_and_the_rate_is_that_of_the_epoch():
    history = fit(small_model(), batches(4, bad=[2]), LossScaleLogger(verbose=0), epochs=3).history
    assert history["skipped_steps"] == [1.0, 2.0, 3.0]
    assert history["scale_backoffs"] == [1.0, 2.0, 3.0]
    assert history["overflow_rate"] == [0.25] * 3
    assert history["loss_scale"] == [2.0**14, 2.0**13, 2.0**12]
    assert history["good_steps"] == [2.0] * 3


def test_the_prefix_stands_before_each_key():
    history = fit(small_model(), batches(1), LossScaleLogger(prefix="fp16_", verbose=0)).history
    assert set(history) == {"loss"} | {f"fp16_{key}" for key in KEYS}


@pytest.mark.parametrize("steps_per_execution", [1, 3, 4, 8])
def test_events_do_not_depend_on_steps_per_execution(tmp_path, steps_per_execution):
    path = tmp_path / "events.jsonl"
    model = small_model(steps_per_execution=steps_per_execution)
    history = fit(model, batches(8, bad=[1, 2]), LossScaleLogger(jsonl=path, verbose=0)).history
    assert history["skipped_steps"] == [2.0]
    assert history["overflow_rate"] == [0.25]
    assert history["good_steps"] == [6.0]
    events = [(e.attempt, e.kind, e.scale_before, e.scale_after) for e in read_events(path).events]
    assert events == [
        (1, "back off", 2.0**15, 2.0**14),
        (2, "back off", 2.0**14, 2.0**13),
    ]


def test_the_file_has_one_object_a_line_with_what_is_known_of_the_event(tmp_path):
    path = tmp_path / "folder" / "events.jsonl"
    fit(small_model(), batches(3, bad=[2]), LossScaleLogger(jsonl=path, verbose=0), epochs=2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.pop("epoch") for line in lines] == [0, 1]
    assert 1.6e9 < lines[0].pop("wall_time") <= lines[1].pop("wall_time")
    assert lines[0] == {
        "attempt": 2,
        "kind": "back off",
        "scale_before": 2.0**15,
        "scale_after": 2.0**14,
        "bad_variables": 1,
        "variable": "net/dense/kernel",
        "infs": 2,
        "nans": 0,
        "forward": False,
        "bad_steps": 1,
        "rank": None,
    }
    assert lines[1]["attempt"] == 5


def test_a_file_without_events_exists(tmp_path):
    fit(small_model(), batches(1), LossScaleLogger(jsonl=tmp_path / "events.jsonl", verbose=0))
    assert read_events(tmp_path / "events.jsonl").events == []


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    logger = LossScaleLogger(jsonl=tmp_path / "file" / "events.jsonl", verbose=0)
    history = fit(small_model(), batches(4, bad=[1]), logger, epochs=2).history
    assert history["skipped_steps"] == [1.0, 2.0]
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"Loss-scale events cannot be written to {logger._file.path}")


def test_an_epoch_with_more_steps_than_the_ring_has_room_loses_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    optimizer = scaled_optimizer(scale=2, every=1, max_loss_scale=4)
    count = 700
    bad = range(1, count + 1, 2)  # grows at each good step, falls at each bad one
    model = small_model(optimizer)
    logger = LossScaleLogger(jsonl=path, verbose=0)
    fit(model, batches(count, bad, value=np.inf), logger)
    events = read_events(path).events
    assert [event.attempt for event in events] == list(range(1, count + 1))


def test_events_that_were_overwritten_are_counted(caplog):
    model = small_model(scaled_optimizer(bad=1000), steps_per_execution=600)
    fit(model, batches(600, bad=range(1, 601), value=np.nan), LossScaleLogger())
    assert "88 earlier events were overwritten before they were read" in caplog.text


def test_log_freq_fetches_within_the_epoch(tmp_path):
    path = tmp_path / "events.jsonl"
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(len(read_events(path).events))

    logger = LossScaleLogger(log_freq=2, jsonl=path, verbose=0)
    fit(small_model(), batches(5, bad=[1, 5]), logger, callbacks=[logger, Look()])
    assert seen == [0, 1, 1, 1, 1]
    assert len(read_events(path).events) == 2


@pytest.mark.parametrize("log_freq", ["batch", 0, 1.5, True])
def test_log_freq_is_checked(log_freq):
    with pytest.raises(ValueError, match="`log_freq` must be"):
        LossScaleLogger(log_freq=log_freq)


def test_a_second_fit_with_a_new_logger_repeats_nothing(tmp_path):
    model = small_model()
    fit(model, batches(3, bad=[1]), LossScaleLogger(jsonl=tmp_path / "1", verbose=0))
    traced = model.train_function
    history = fit(model, batches(3, bad=[2]), LossScaleLogger(jsonl=tmp_path / "2", verbose=0))
    assert model.train_function is traced
    assert [event.attempt for event in read_events(tmp_path / "2").events] == [5]
    assert history.history["skipped_steps"] == [2.0]
    assert history.history["overflow_rate"] == [pytest.approx(1 / 3)]


def test_a_logger_that_comes_later_still_protects():
    model = small_model()
    fit(model, batches(2), keras.callbacks.Callback())
    history = fit(model, batches(2, bad=[2], value=np.nan), LossScaleLogger(verbose=0)).history
    assert math.isfinite(history["loss"][0])


def test_restored_events_are_not_repeated(tmp_path):
    path = tmp_path / "events.jsonl"

    def run(epochs):
        keras.utils.set_random_seed(0)
        callbacks = [LossScaleLogger(jsonl=path, verbose=0)]
        callbacks += [
            keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        ]
        return fit(
            small_model(), batches(3, bad=[2]), None, epochs=epochs, callbacks=callbacks
        ).history

    run(1)
    assert run(2)["skipped_steps"] == [2.0]
    assert [event.attempt for event in read_events(path).events] == [2, 5]


def test_another_optimizer_is_refused_by_name():
    model = small_model(keras.optimizers.SGD())
    with pytest.raises(ValueError, match="NPUOptimizer.*Received: model.optimizer=.*SGD"):
        fit(model, batches(1), LossScaleLogger())


def test_an_optimizer_that_does_not_scale_has_the_keys_too():
    optimizer = npu_keras.NPUOptimizer(keras.optimizers.SGD(1e-3))
    protected = []
    optimizer.protect = protected.append
    model = small_model(optimizer)
    history = fit(model, batches(2), LossScaleLogger(verbose=0)).history
    assert [history[key] for key in ("loss_scale", "skipped_steps")] == [[1.0], [0.0]]
    assert protected == []


# A skipped step leaves no trace.


def network(frozen=False):
    layers = [
        keras.layers.Input((4,)),
        keras.layers.Dense(3, trainable=not frozen, name="base"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(0.5, name="dropout"),
        keras.layers.Dense(1, name="head"),
    ]
    return keras.Sequential(layers, name="net")


@pytest.mark.parametrize(
    "how", [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}]
)
def test_a_skipped_batch_is_as_if_it_had_never_been(how):
    x = np.random.default_rng(0).normal(size=(6, 8, 4)).astype(np.float32)
    y = x.sum(-1, keepdims=True)
    with_bad = x.copy()
    with_bad[3] = np.inf

    def run(chosen):
        keras.utils.set_random_seed(1)
        model = network()
        optimizer = scaled_optimizer(bad=10)
        model.compile(optimizer, loss="mse", **how)
        data = tf.data.Dataset.from_tensor_slices((with_bad[chosen], y[chosen]))
        history = fit(model, [data], LossScaleLogger(verbose=0), epochs=2, batch_size=None)
        return model, history.history

    without, clean = run([0, 1, 2, 4, 5])
    model, history = run([0, 1, 2, 3, 4, 5])
    assert history["skipped_steps"] == [1.0, 2.0]
    assert history["loss"] == clean["loss"]
    assert len(model.variables) == len(without.variables) > 8
    for one, other in zip(without.variables, model.variables, strict=True):
        if one.path.startswith("NPUOptimizer"):
            continue
        np.testing.assert_array_equal(np.array(one), np.array(other), err_msg=one.path)


def test_what_the_forward_pass_writes_is_protected_and_no_more():
    model = network(frozen=True)
    model.compile(scaled_optimizer(), loss="mse", metrics=["mae"])
    model.build((None, 4))
    assert sorted(variable.path.split("/", 1)[-1] for variable in forward_state(model)) == [
        "count",
        "norm/moving_mean",
        "norm/moving_variance",
        "seed_generator_state",
        "total",
    ]


def test_weights_frozen_after_construction_and_quantized_ones_are_not_copied():
    model = network()
    model.get_layer("norm").trainable = False
    model.get_layer("base").quantize("int8")
    model.compile(scaled_optimizer(), loss="mse")
    names = {variable.path.split("/")[-1] for variable in forward_state(model)}
    assert "kernel" not in names
    assert {"moving_mean", "moving_variance", "seed_generator_state"} <= names


def test_the_running_loss_of_a_train_step_of_ones_own_is_left_alone():
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = Own([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(scaled_optimizer(), loss="mse")
    assert forward_state(model) == []


def test_the_loss_of_an_epoch_without_applied_steps_is_not_a_perfect_zero():
    data = batches(2, bad=[1, 2], value=np.nan)
    history = fit(small_model(), data, LossScaleLogger(verbose=0)).history
    assert math.isnan(history["loss"][0])


# What others see.


def test_columns_of_csv(tmp_path):
    path = tmp_path / "history.csv"
    callbacks = [LossScaleLogger(verbose=0), keras.callbacks.CSVLogger(path)]
    fit(small_model(), batches(4, bad=[3]), None, epochs=2, callbacks=callbacks)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["skipped_steps"]) for row in rows] == [1.0, 2.0]
    assert set(KEYS) <= set(rows[0])


def test_tags_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    callbacks = [LossScaleLogger(verbose=0), keras.callbacks.TensorBoard(tmp_path)]
    fit(small_model(), batches(4, bad=[3]), None, epochs=2, callbacks=callbacks)
    (path,) = (tmp_path / "train").glob("events*")
    records = tf.compat.v1.train.summary_iterator(str(path))
    scalars = [
        (value.tag, float(tf.make_ndarray(value.tensor)))
        for record in records
        for value in record.summary.value
        if value.tag.startswith("epoch_")
    ]
    assert {f"epoch_{key}" for key in KEYS} <= {tag for tag, _ in scalars}
    assert [value for tag, value in scalars if tag == "epoch_skipped_steps"] == [1.0, 2.0]


def points(folder):
    """What the event files of a run hold, by tag: pairs of step and value."""
    found = {}
    for path in sorted((folder / "loss_scale").glob("events*")):
        for record in tf.compat.v1.train.summary_iterator(str(path)):
            for value in record.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append((record.step, number))
    return found


@pytest.mark.parametrize("log_freq, ends", [("epoch", [8, 16]), (4, [4, 8, 12, 16])])
def test_scalars_of_tensorboard_stand_at_the_steps_of_the_events(tmp_path, log_freq, ends):
    logger = LossScaleLogger(log_dir=tmp_path, log_freq=log_freq, verbose=0, prefix="my_")
    model = small_model(scaled_optimizer(every=6), steps_per_execution=4)
    fit(model, batches(8, bad=[3]), logger, epochs=2)
    scales = {0: 15, 3: 14, 9: 15, 11: 14}
    at = sorted({*scales, *ends})
    scale = [2.0 ** scales[max(s for s in scales if s <= step)] for step in at]
    skipped = [float((step >= 3) + (step >= 11)) for step in at]
    assert points(tmp_path) == {
        "my_loss_scale": list(zip(at, scale, strict=True)),
        "my_skipped_steps": list(zip(at, skipped, strict=True)),
        "my_overflow": [(3, 1.0), (9, 0.0), (11, 1.0)],
    }


def test_scalars_that_cannot_be_written_are_reported_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    logger = LossScaleLogger(log_dir=tmp_path / "file", verbose=0)
    history = fit(small_model(), batches(4, bad=[1]), logger, epochs=2).history
    assert history["skipped_steps"] == [1.0, 2.0]
    (warning,) = (r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    assert warning.startswith(f"TensorBoard's scalars cannot be written to {tmp_path}/file/loss")


def test_only_the_rank_that_speaks_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(loss_scale_logger, "speaks_for_all", lambda optimizer: False)
    logger = LossScaleLogger(log_dir=tmp_path, jsonl=tmp_path / "events.jsonl")
    fit(small_model(), batches(2, bad=[1]), logger)
    assert list(tmp_path.iterdir()) == []
    assert [record["attempt"] for record in logger.to_records()] == [1]


def test_records_are_the_events_of_the_last_training(tmp_path):
    model, logger = small_model(), LossScaleLogger(verbose=0)
    assert logger.to_records() == []
    fit(model, batches(3, bad=[2]), logger, epochs=2)
    assert [(r["epoch"], r["attempt"]) for r in logger.to_records()] == [(0, 2), (1, 5)]
    fit(model, batches(3, bad=[3]), logger)
    (record,) = logger.to_records()
    assert record == {
        "attempt": 9,
        "kind": "back off",
        "scale_before": 2.0**13,
        "scale_after": 2.0**12,
        "bad_variables": 1,
        "variable": "net/dense/kernel",
        "infs": 2,
        "nans": 0,
        "forward": False,
        "bad_steps": 1,
        "rank": None,
        "epoch": 0,
    }
