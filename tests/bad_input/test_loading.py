# SPDX-License-Identifier: Apache-2.0
"""Files that somebody has tampered with: nothing in them runs, and nothing wrong gets in."""

import copy
import json
import warnings
import zipfile

import keras
import numpy as np
import pytest
from rows import sgd

from npu_keras import ExponentialUpdateLossScaleManager, GradientAggregation, NPUOptimizer
from npu_keras.buckets import set_split_strategy_by_idx, split_strategy

pytestmark = pytest.mark.tf

LAMBDA = {
    "class_name": "__lambda__",
    "config": {"value": "4wAAAAA=", "defaults": None, "closure": None},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
    aggregation = GradientAggregation(split=[20, 80.0])
    scale = ExponentialUpdateLossScaleManager(8, 2)
    model.compile(NPUOptimizer(sgd(), scale, True, True, aggregation=aggregation), "mse")
    model.optimizer.build(model.trainable_variables)
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.fixture
def load(saved, tmp_path):
    def loaded(change):
        config = json.loads(saved["config.json"])
        change(config["compile_config"]["optimizer"])
        with zipfile.ZipFile(tmp_path / "model.keras", "w") as file:
            for name, data in saved.items():
                file.writestr(name, json.dumps(config) if name == "config.json" else data)
        return keras.saving.load_model(tmp_path / "model.keras").optimizer

    return loaded


def put(value, *path):
    """Puts a value into the config of the optimizer."""

    def change(optimizer):
        *inner, last = path
        for name in inner:
            optimizer = optimizer[name]
        optimizer[last] = copy.deepcopy(value)

    return change


MANAGER = ("config", "loss_scale_manager")
SETTINGS = ("config", "aggregation", "config")
COMMAND = {"module": "os", "class_name": "system", "registered_name": None}
COMMAND |= {"config": {"command": "false"}}
UNKNOWN = {"module": "x", "class_name": "Evil", "registered_name": "x>Evil", "config": {}}

TAMPERED = {
    # What Keras refuses in its safe mode, wherever it stands.
    "lambda for a manager": (put(LAMBDA, *MANAGER), ValueError, "lambda"),
    "lambda for an optimizer": (put(LAMBDA, "config", "opt"), ValueError, "lambda"),
    "lambda for settings": (put(LAMBDA, "config", "aggregation"), ValueError, "lambda"),
    "lambda for a rate": (
        put(LAMBDA, "config", "opt", "config", "learning_rate"),
        ValueError,
        "lambda",
    ),
    "command for a manager": (put(COMMAND, *MANAGER), TypeError, "Could not locate"),
    "command for an optimizer": (put(COMMAND, "config", "opt"), TypeError, "Could not locate"),
    "unknown class": (put(UNKNOWN, *MANAGER), TypeError, "Evil"),
    "list for a config": (put([1], "config"), TypeError, "config"),
    # What the classes here refuse.
    "text for a manager": (put("x", *MANAGER), TypeError, "`loss_scale_manager` must be"),
    "number for a manager": (put(3, *MANAGER), TypeError, "`loss_scale_manager` must be"),
    "text for an optimizer": (put("adam", "config", "opt"), TypeError, "`opt` must be a Keras 3"),
    "nothing for an optimizer": (put(None, "config", "opt"), TypeError, "`opt` must be a Keras 3"),
    "text for settings": (put("x", "config", "aggregation"), TypeError, "`aggregation` must be"),
    "text for a flag": (put("no", "config", "is_loss_scale"), TypeError, "`is_loss_scale` must"),
    "text for a mode": (put("off", "config", "overflow_mode"), ValueError, "`overflow_mode` must"),
    "list for a name": (put(["x"], "config", "name"), TypeError, "`name` must be"),
    "unknown argument": (put(1, "config", "evil"), TypeError, "no argument `evil`"),
    "huge scale": (put(10**400, *MANAGER, "config", "init_loss_scale"), ValueError, "init_loss"),
    "infinite scale": (
        put(float("inf"), *MANAGER, "config", "init_loss_scale"),
        ValueError,
        "`init_loss_scale`",
    ),
    "text for a scale": (put("8", *MANAGER, "config", "init_loss_scale"), TypeError, "init_loss"),
    "huge interval": (
        put(2**40, *MANAGER, "config", "incr_every_n_steps"),
        ValueError,
        "`incr_every_n_steps`",
    ),
    "huge split": (put(list(range(10**5)), *SETTINGS, "split"), ValueError, "1 to 8"),
    "function for a split": (
        put({"strategy": "clear_split_strategy"}, *SETTINGS, "split"),
        ValueError,
        "`split` must be one of",
    ),
    "unknown engine": (put("os", *SETTINGS, "engine"), ValueError, "`engine` must be one of"),
    "negative time": (put(-1, *SETTINGS, "timeout_s"), ValueError, "`timeout_s`"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_config_is_refused(name, load):
    change, error, words = TAMPERED[name]
    set_split_strategy_by_idx([5])
    with pytest.raises(error) as caught:
        load(change)
    assert words in str(caught.value)
    assert split_strategy() is not None  # nothing was called


def test_what_nobody_touched_is_loaded(load):
    optimizer = load(lambda config: None)
    assert optimizer.loss_scale_manager == ExponentialUpdateLossScaleManager(8, 2)
    assert optimizer.get_config()["aggregation"]["config"]["split"]["value"] == [20, 80.0]


def state(change=None):
    optimizer = NPUOptimizer(sgd(), ExponentialUpdateLossScaleManager(8, 2), is_loss_scale=True)
    optimizer.build([keras.Variable(1.0)])
    store = {}
    optimizer.save_own_variables(store)
    if change:
        change(store)
    return optimizer, store


def test_variables_of_other_shapes_are_refused():
    optimizer, store = state(lambda store: store.update({"0": np.zeros(7, "float32")}))
    with pytest.raises(ValueError, match="shape"):
        optimizer.load_own_variables(store)
    optimizer, store = state(lambda store: store.pop("3"))
    with pytest.warns(UserWarning, match="Nothing was loaded"):
        optimizer.load_own_variables(store)


@pytest.mark.parametrize("count", [2**62, -(2**62)])
def test_an_impossible_number_of_events_is_read_without_harm(count):
    optimizer, store = state()
    place = [path.split("/")[-1] for path in (v.path for v in optimizer.variables)]
    optimizer.variables[place.index("event_count")].assign(count)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(optimizer.journal.drain()) <= 512
        assert optimizer.journal.drain() == []
