# SPDX-License-Identifier: Apache-2.0
"""Keras' own callbacks find what they look for on our optimizers."""

import csv
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import (
    INF,
    KINDS,
    apply,
    assert_bit_equal,
    dataset,
    make,
    manager,
    sgd,
    small_model,
    values,
    weight,
)


def compiled(kind, base=keras.optimizers.SGD, **settings):
    keras.utils.set_random_seed(2)
    model = small_model()
    optimizer = make(kind, base, manager(64.0), **{"learning_rate": 0.5, **settings})
    model.compile(optimizer, loss="mse", jit_compile=False)
    return model


def fit(model, *callbacks, epochs=3, batches=4, **arguments):
    return model.fit(
        dataset(batches),
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=list(callbacks),
        **arguments,
    )


@pytest.mark.parametrize("kind", KINDS)
class TestLearningRate:
    def test_assignment(self, kind):
        optimizer = make(kind, learning_rate=0.25)
        optimizer.learning_rate = 0.5
        assert float(optimizer.learning_rate) == 0.5
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        assert float(inner.learning_rate) == 0.5

    def test_a_schedule_cannot_be_assigned_to(self, kind):
        schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
        optimizer = make(kind, learning_rate=schedule)
        assert float(optimizer.learning_rate) == 1.0
        with pytest.raises(TypeError, match="LearningRateSchedule"):
            optimizer.learning_rate = 0.5

    def test_a_skipped_step_does_not_advance_a_schedule(self, kind):
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.125])
        optimizer = sgd(kind, manager(2.0**10), rate=schedule)
        variable = weight(0.0)
        apply(optimizer, variable, *[INF] * 5)
        assert int(optimizer.iterations) == 0
        apply(optimizer, variable, 1.0)
        assert (int(optimizer.iterations), float(variable)) == (1, -1.0)
        apply(optimizer, variable, 1.0, 1.0, 1.0)
        assert float(variable) == -1.0 - 1.0 - 1.0 - 0.125

    def test_callbacks_that_set_it(self, kind):
        model = compiled(kind)
        scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        plateau = keras.callbacks.ReduceLROnPlateau(
            monitor="loss", factor=0.1, patience=1, min_delta=1e9
        )
        history = fit(model, scheduler, plateau).history
        # 0.5 halves, halves and, after an epoch without progress, falls to a tenth; and again.
        np.testing.assert_allclose(history["learning_rate"], [0.25, 0.125, 0.00625], rtol=1e-6)
        assert float(model.optimizer.learning_rate) == pytest.approx(0.000625, rel=1e-6)


def test_files_that_describe_a_run(tmp_path):
    model = compiled("NPUOptimizer", keras.optimizers.Adam, learning_rate=0.125)
    board = keras.callbacks.TensorBoard(tmp_path / "tb", update_freq=1)
    fit(model, board, keras.callbacks.CSVLogger(tmp_path / "log.csv"), epochs=2)
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    files = [str(path) for path in (tmp_path / "tb" / "train").iterdir()]
    events = [e for name in files for e in tf.compat.v1.train.summary_iterator(name)]
    rates = [
        (event.step, float(tf.make_ndarray(value.tensor)))
        for event in events
        for value in event.summary.value
        if value.tag == "epoch_learning_rate"
    ]
    assert rates == [(0, 0.125), (1, 0.125)]
    steps = {e.step for e in events for v in e.summary.value if v.tag.startswith("batch")}
    assert max(steps) >= 7  # `TensorBoard` takes its step from `iterations`


@pytest.mark.parametrize("weights_only", [True, False])
def test_model_checkpoint(weights_only, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(2)
    model = small_model("mixed_float16")
    model.compile(make("NPUOptimizer", manager=manager(64.0), learning_rate=0.1), loss="mse")
    name = "{epoch}.weights.h5" if weights_only else "{epoch}.keras"
    saver = keras.callbacks.ModelCheckpoint(tmp_path / name, save_weights_only=weights_only)
    fit(model, saver, epochs=2)
    assert len(list(tmp_path.iterdir())) == 2
    if weights_only:
        again = small_model("mixed_float16")
        optimizer = make("NPUOptimizer", manager=manager(64.0), learning_rate=0.1)
        again.compile(optimizer, loss="mse")
        again.load_weights(tmp_path / "2.weights.h5")
        optimizer.build(again.trainable_variables)
    else:
        again = keras.saving.load_model(tmp_path / "2.keras")
    assert_bit_equal(values(again.variables), values(model.variables))
    assert int(again.optimizer.iterations) == 8
    for one in (model, again):
        fit(one, epochs=1)
    assert_bit_equal(values(again.variables), values(model.variables))


@pytest.mark.parametrize("kind", KINDS)
def test_moving_averages_in_the_place_of_weights(kind):
    settings = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": None}
    model, plain = compiled(kind, **settings), compiled(kind, **settings)
    plain.compile(keras.optimizers.SGD(0.5, **settings), loss="mse", jit_compile=False)

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.trained = values(self.model.trainable_variables)

        def on_test_begin(self, logs=None):
            self.tested = values(self.model.trainable_variables)

    ours, theirs = Look(), Look()
    for one, look in ((model, ours), (plain, theirs)):
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=False)
        fit(one, swap, look, epochs=2, validation_data=dataset(2))
    assert_bit_equal(values(model.variables), values(plain.variables))
    assert_bit_equal(ours.tested, theirs.tested)
    assert not np.array_equal(ours.tested[0], ours.trained[0])


def test_nothing_is_said_that_keras_would_not_say(capsys):
    model = compiled("NPUOptimizer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, epochs=1, validation_data=dataset(2))
    out, _ = capsys.readouterr()
    assert out == ""
