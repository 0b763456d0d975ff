# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer survives every kind of file, and training goes on bit for bit."""

import json
import zipfile
from pathlib import Path
from typing import NamedTuple

import h5py
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
    mixin_class,
    small_model,
    weight,
    weights_and_state,
)

from npu_keras import NPULossScaleOptimizer, NPUOptimizer

DATA = Path(__file__).parent.parent / "data"
STATE = (
    "loss_scale",
    "good_steps",
    "bad_steps",
    "skipped_steps",
    "attempted_steps",
    "last_step_finite",
)


def compiled(kind, base=keras.optimizers.Adam, policy="float32", **settings):
    keras.utils.set_random_seed(3)
    model = small_model(policy)
    settings.setdefault("learning_rate", 0.1)
    optimizer = make(kind, base, manager(1024.0, grow=5), **settings)
    model.compile(optimizer, loss="mse", jit_compile=False)
    return model


BATCHES = 12
BAD = (2, 8)


def seven():
    return dataset(BATCHES, BAD).take(7)


def five():
    return dataset(BATCHES, BAD).skip(7)


def state(optimizer):
    return {name: np.array(getattr(optimizer, name)).item() for name in STATE}


class Saved(NamedTuple):
    """What was saved after seven steps, and what five more steps made of it."""

    kind: str
    folder: Path
    after_seven: list[np.ndarray]
    after_twelve: list[np.ndarray]


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("saved"), compiled(request.param)
    model.fit(seven(), verbose=0, shuffle=False)
    model.save(folder / "m.keras")
    model.save_weights(folder / "m.weights.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "c"))
    after_seven = weights_and_state(model, model.optimizer)
    model.fit(five(), verbose=0, shuffle=False)
    return Saved(request.param, folder, after_seven, weights_and_state(model, model.optimizer))


class TestResume:
    def check(self, model, saved):
        assert state(model.optimizer) == {
            "loss_scale": 512.0,  # one overflow, then four good steps
            "good_steps": 4,
            "bad_steps": 0,
            "skipped_steps": 1,
            "attempted_steps": 7,
            "last_step_finite": True,
        }
        assert int(model.optimizer.iterations) == 6
        assert_bit_equal(weights_and_state(model, model.optimizer), saved.after_seven)
        assert [e.attempt for e in model.optimizer.journal.drain()] == [3]
        model.fit(five(), verbose=0, shuffle=False)
        assert_bit_equal(weights_and_state(model, model.optimizer), saved.after_twelve)
        assert [(e.attempt, e.kind) for e in model.optimizer.journal.drain()] == [
            (8, "grow"),
            (9, "back off"),
        ]

    def test_model_file(self, saved):
        model = keras.saving.load_model(saved.folder / "m.keras")
        assert type(model.optimizer) is type(compiled(saved.kind).optimizer)
        assert model.optimizer.loss_scale_manager == manager(1024.0, grow=5)
        self.check(model, saved)

    @pytest.mark.parametrize("built", [True, False])
    def test_weights_file(self, saved, built):
        """Without a warning in either case; warnings are errors here."""
        model = compiled(saved.kind)
        if built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(saved.folder / "m.weights.h5")
        model.optimizer.build(model.trainable_variables)
        self.check(model, saved)

    @pytest.mark.parametrize("built", [True, False])
    def test_checkpoint(self, saved, built):
        model = compiled(saved.kind)
        if built:
            model.optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        status = checkpoint.read(str(saved.folder / "c"))
        model.optimizer.build(model.trainable_variables)
        status.assert_existing_objects_matched()
        self.check(model, saved)


class Trace(keras.callbacks.Callback):
    """Keeps weights and state at the start and after each attempt; stops the run in one."""

    def __init__(self, stop_in=None):
        super().__init__()
        self.at_start, self.after, self.stop_in = None, {}, stop_in

    def on_train_begin(self, logs=None):
        self.at_start = weights_and_state(self.model, self.model.optimizer)

    def on_train_batch_end(self, batch, logs=None):
        attempt = int(self.model.optimizer.attempted_steps)
        self.after[attempt] = weights_and_state(self.model, self.model.optimizer)
        if attempt == self.stop_in:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "save_freq, saved_last, policy",
    [("epoch", 6, "float32"), (3, 9, "float32"), ("epoch", 6, "mixed_float16")],
)
def test_backup_and_restore(save_freq, saved_last, policy, tmp_path):
    def fit(trace, *others):
        batches = dataset(6, (1, 4))
        callbacks = [trace, *others] if trace.stop_in else [*others, trace]
        model = compiled("NPUOptimizer", policy=policy)
        model.fit(batches, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
        return model

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "b", save_freq=save_freq)

    unbroken, broken, resumed = Trace(), Trace(stop_in=10), Trace()
    fit(unbroken)
    with pytest.raises(KeyboardInterrupt):
        fit(broken, backup())
    model = fit(resumed, backup())
    assert_bit_equal(resumed.at_start, unbroken.after[saved_last])
    if save_freq == "epoch":
        assert_bit_equal(weights_and_state(model, model.optimizer), unbroken.after[18])


def test_an_optimizer_keeps_its_path_in_a_file(tmp_path):
    """As Keras' own class: `optimizer/vars` and `optimizer/inner_optimizer/vars`."""
    model = compiled("NPUOptimizer")
    model.fit(seven(), verbose=0, shuffle=False)
    model.save_weights(tmp_path / "m.weights.h5")
    groups = []
    with h5py.File(tmp_path / "m.weights.h5") as file:
        file.visit(groups.append)
    assert {name for name in groups if name.startswith("optimizer/") and name.endswith("vars")} == {
        "optimizer/vars",
        "optimizer/inner_optimizer/vars",
    }


def test_a_file_without_optimizer_leaves_the_state(tmp_path):
    keras.utils.set_random_seed(3)
    plain = small_model()
    plain.save_weights(tmp_path / "m.weights.h5")
    model = compiled("NPULossScaleOptimizer")
    model.load_weights(tmp_path / "m.weights.h5")
    model.optimizer.build(model.trainable_variables)
    assert float(model.optimizer.loss_scale) == 1024.0


def test_the_state_belongs_to_the_optimizer_and_not_to_the_manager():
    variable, scale_manager = weight(), manager(64.0, grow=1)
    optimizer = make("NPULossScaleOptimizer", manager=scale_manager, learning_rate=0.1)
    optimizer.scale_loss(0.0)
    apply(optimizer, variable, 1.0)
    assert float(optimizer.loss_scale) == 128.0
    again = type(optimizer).from_config(optimizer.get_config())
    assert float(again.loss_scale) == 64.0
    assert again.loss_scale_manager == scale_manager
    assert again.loss_scale_manager is not scale_manager


def test_an_unsavable_manager_says_so(tmp_path):
    from npu_keras import LossScaleManager

    class Mine(LossScaleManager):
        def get_loss_scale(self):
            return 2.0

        def update_loss_scale(self, finite_grads):
            pass

    optimizer = NPULossScaleOptimizer(keras.optimizers.SGD(0.1), Mine())
    with pytest.raises(NotImplementedError, match="Mine cannot be saved"):
        optimizer.get_config()


# Files in tests/data, made once: the order of the variables is a file format. Make new ones, with
# `python tests/tf/test_saving.py`, only if that format has to change, and by the oldest Keras there
# may be, since an older one does not read what a newer one has written.

GOLDEN = {
    "wrapper": lambda: NPUOptimizer(
        keras.optimizers.Adam(0.1), manager(1024.0, grow=2), is_loss_scale=True
    ),
    "mixin": lambda: make("mixin", keras.optimizers.SGD, manager(256.0), learning_rate=0.1),
}


def golden_model(name):
    keras.utils.set_random_seed(5)
    dense = keras.layers.Dense(1, name="dense")
    model = keras.Sequential([keras.layers.Input((2,)), dense], name="golden")
    model.compile(GOLDEN[name](), loss="mse", jit_compile=False)
    x = np.float32([[1, 2], [3, 4], [INF, 0], [5, 6]])
    model.fit(x, np.ones((4, 1), "float32"), batch_size=1, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("name", GOLDEN)
def test_stored_files_can_be_read(name):
    mixin_class(keras.optimizers.SGD)  # registers it
    expected = json.loads((DATA / f"optimizer_{name}.json").read_text())
    model = keras.saving.load_model(DATA / f"optimizer_{name}.keras")
    found = json.loads(json.dumps(describe(model)))
    assert found.pop("variables") == expected.pop("variables")
    assert found == expected
    assert expected["iterations"] == 3


@pytest.mark.parametrize("name", GOLDEN)
def test_stored_files_are_what_is_written_today(name, tmp_path):
    expected = json.loads((DATA / f"optimizer_{name}.json").read_text())
    assert (
        json.loads(json.dumps(describe(golden_model(name))))["variables"] == expected["variables"]
    )


def describe(model):
    optimizer = model.optimizer
    return {
        "state": state(optimizer),
        "iterations": int(optimizer.iterations),
        "events": [[*event[:5], *event[6:]] for event in optimizer.journal.drain()],
        "overflows": list(optimizer.journal.overflows_by_variable().values()),
        "variables": [v.path.split("/")[-1].removeprefix("golden_") for v in optimizer.variables],
        "slots": [np.array(v).tolist() for v in optimizer.variables if "dense" in v.path],
    }


def store(name, folder=DATA):
    model = golden_model(name)
    model.save(folder / "plain.keras")
    with zipfile.ZipFile(folder / "plain.keras") as plain:
        target = folder / f"optimizer_{name}.keras"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
            for entry in plain.namelist():
                packed.writestr(entry, plain.read(entry))
    (folder / "plain.keras").unlink()
    text = json.dumps(describe(model), indent=1)
    (folder / f"optimizer_{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    for golden in GOLDEN:
        store(golden)
