# SPDX-License-Identifier: Apache-2.0
"""The loss scale, the counters and the journal come back from every format of tf_keras."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hosts import MAKERS, data, events, fit, small_model, values

FORMATS = [".keras", ".h5", "weights tf", "weights h5", ".weights.h5", "checkpoint"]
# tf_keras 2.21.0 stores nothing of a legacy optimizer in them.
NOT_FOR_LEGACY_MIXINS = (".keras", ".weights.h5")
NO_OPTIMIZER = ("weights h5",)


def store(model, form, folder):
    """Saves; returns a function of a compiled new model that returns the loaded one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are saving your model as an HDF5 file")
        if form in (".keras", ".h5"):
            path = str(folder / f"model{form}")
            model.save(path)
            return lambda new: tf_keras.models.load_model(path)
    if form == "checkpoint":
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(folder / "ck")

        def restore(new):
            tf.train.Checkpoint(model=new, optimizer=new.optimizer).restore(path)
            return new

        return restore
    path = str(folder / {"weights tf": "w", "weights h5": "w.h5"}.get(form, f"w{form}"))
    model.save_weights(path)

    def load(new):
        new.load_weights(path)
        return new

    return load


def expected(kind, form):
    return form not in NO_OPTIMIZER and not (
        kind == "legacy mixin" and form in NOT_FOR_LEGACY_MIXINS
    )


@pytest.fixture(scope="module", params=MAKERS)
def trained(request):
    tf_keras.utils.set_random_seed(0)
    model = small_model()
    fit(model, MAKERS[request.param]("Adam", learning_rate=0.01), bad=[1, 2])
    return request.param, model


@pytest.mark.parametrize("form", FORMATS)
def test_everything_is_there_afterwards(trained, form, tmp_path):
    kind, model = trained
    new = small_model()
    new.compile(MAKERS[kind]("Adam", learning_rate=0.01), "mse")
    loaded = store(model, form, tmp_path)(new)
    loaded.optimizer.build(loaded.trainable_variables)
    before, after = model.optimizer, loaded.optimizer
    assert type(after) is type(before)
    for mine, yours in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, yours)
    if not expected(kind, form):
        assert int(after.attempted_steps) == 0
        return
    assert (float(after.loss_scale), int(after.skipped_steps)) == (512.0, 2)
    assert int(after.iterations) == 6
    assert after.journal.snapshot() == before.journal.snapshot()
    assert after.journal.overflows_by_variable().values() != {}
    assert sorted(map(str, sums(before))) == sorted(map(str, sums(after)))


def sums(optimizer):
    """The values alone: where slots are restored first, legacy optimizers order them otherwise."""
    return [value.astype("float64").sum() for value in values(optimizer).values()]


@pytest.mark.parametrize("kind", ["wrapper", "legacy wrapper", "mixin"])
def test_a_saved_model_can_be_read_for_inference(kind, tmp_path):
    model = small_model()
    fit(model, MAKERS[kind]("Adam", learning_rate=0.01))
    model.save(tmp_path / "model", save_format="tf")
    loaded = tf_keras.models.load_model(tmp_path / "model", compile=False)
    x, _ = data()
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_training_goes_on_bit_for_bit(tmp_path):
    model = small_model()
    fit(model, MAKERS["wrapper"]("Adam", learning_rate=0.01), bad=[1])
    model.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        fit(each, bad=[0])
    for mine, yours in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, yours)
    assert events(loaded.optimizer) == events(model.optimizer)


def test_a_model_that_is_built_later_gets_them_too(tmp_path):
    """A subclassed model has no variables yet when its `.weights.h5` is read."""

    class Late(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf_keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    x, y = data(2)
    first = Late()
    first.compile(MAKERS["wrapper"]("SGD", learning_rate=0.1, momentum=0.9), "mse")
    first.fit(x, y, batch_size=4, verbose=0)
    first.save_weights(tmp_path / "w", save_format="tf")
    second = Late()
    second.compile(MAKERS["wrapper"]("SGD", learning_rate=0.1, momentum=0.9), "mse")
    second.load_weights(tmp_path / "w")
    second.fit(x, y, batch_size=4, verbose=0)
    assert int(second.optimizer.attempted_steps) == 4


@pytest.mark.parametrize("kind", MAKERS)
def test_configs_are_json_safe_and_left_alone(kind):
    optimizer = MAKERS[kind]("Adam", learning_rate=0.25)
    config = optimizer.get_config()
    kept = repr(config)
    again = type(optimizer).from_config(config)
    assert repr(config) == kept
    assert repr(again.get_config()) == kept
    assert float(again.learning_rate) == 0.25
    assert again.initial_scale == optimizer.initial_scale


def test_backup_and_restore(tmp_path):
    x, y = data()

    class Interrupted(tf_keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def train(*callbacks):
        model = small_model()
        model.compile(MAKERS["wrapper"]("Adam", learning_rate=0.01), "mse")
        backup = tf_keras.callbacks.BackupAndRestore(tmp_path)
        settings = {"batch_size": 4, "epochs": 2, "verbose": 0}
        model.fit(x, y, callbacks=[backup, *callbacks], **settings)
        return model.optimizer

    with pytest.raises(KeyboardInterrupt):
        train(Interrupted())
    assert int(train().attempted_steps) == 16
