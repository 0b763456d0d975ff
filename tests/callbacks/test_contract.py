# SPDX-License-Identifier: Apache-2.0
"""What every callback keeps to, with models of Keras 3 and of tf_keras."""

import inspect
import logging
import re
from typing import Any, NamedTuple

import pytest
from hosts import HOSTS, batches, fit, model

from npu_keras import callbacks


class Entry(NamedTuple):
    """How to make a callback, and what it refuses."""

    arguments: dict[str, Any] = {}
    refused: list[dict[str, Any]] = []


TABLE = {
    "BroadcastVariables": Entry(refused=[{"root_rank": -1}, {"root_rank": 0.5}]),
    "ConsistencyCheck": Entry({"every": 2}, [{"every": 0}, {"every": "batch"}, {"every": True}]),
    "DistributionReport": Entry({"every": 3}, [{"every": 0}, {"every": 2.0}, {"every": True}]),
    "LossScaleLogger": Entry({"verbose": 0, "log_freq": 2}, [{"log_freq": 0}]),
    "LossScalePlot": Entry(refused=[{"every_s": 0}, {"every_s": "2"}, {"every_s": True}]),
    "MetricAverage": Entry(),
    "OverflowGuard": Entry(
        {"max_consecutive_skips": 3, "max_overflow_rate": 0.9, "window": 5},
        [
            {"max_consecutive_skips": 0},
            {"max_overflow_rate": 1.0},
            {"max_overflow_rate": -0.1},
            {"window": 0},
            {"on_floor": "ignore"},
            {"action": "terminate"},
        ],
    ),
    "StepLimit": Entry({"steps": 1000}, [{"steps": 0}, {"steps": 1.5}, {"steps": True}]),
}
"""A new callback joins by one line here."""

NO_KEYS = "It adds no key to the logs."
KEY_TABLE = re.compile(r"\| key in the epoch logs .*\n *\| ---.*\n((?: *\|.*\n)+)")


def documented_keys(cls):
    doc = cls.__doc__
    table = KEY_TABLE.search(doc)
    assert (table is None) == (NO_KEYS in doc), f"{cls.__name__} does not say what it logs"
    return set(re.findall(r"^ *\| `(\w+)` \|", table[1], re.M)) if table else set()


def test_every_callback_is_exported_and_in_the_table():
    assert sorted(callbacks.__all__) == list(TABLE)
    public = {n for n, v in vars(callbacks).items() if inspect.isclass(v)}
    assert public == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_the_docstring_says_what_it_takes_raises_and_logs(name):
    cls = getattr(callbacks, name)
    documented_keys(cls)
    arguments = list(inspect.signature(cls).parameters)
    assert all(re.search(rf"^        {each}: ", cls.__doc__, re.M) for each in arguments)
    assert ("Args:" in cls.__doc__) == bool(arguments)
    assert "Raises:" in cls.__doc__
    assert "Example:\n\n    ```python\n" in cls.__doc__
    for hook in (n for n in vars(cls) if n.startswith("on_")):
        assert getattr(cls, hook).__doc__


@pytest.mark.parametrize(
    "name, arguments",
    [(name, arguments) for name, entry in TABLE.items() for arguments in entry.refused],
)
def test_bad_arguments_are_refused_with_what_was_received(name, arguments):
    (argument,) = arguments
    with pytest.raises(ValueError, match=f"`{argument}` must be .*Received: {argument}="):
        getattr(callbacks, name)(**arguments)


@pytest.fixture(scope="module", params=HOSTS)
def trained(request):
    """A model for all callbacks, with the logs that it has without any."""
    made = model(request.param, steps_per_execution=4)
    return made, set(run(made))


def run(model, *callbacks):
    return fit(model, batches(6, bad=[2]), *callbacks, validation_data=batches(2)).history


@pytest.mark.parametrize("name", TABLE)
def test_it_works_in_two_trainings_and_adds_what_it_says(trained, name, caplog):
    caplog.set_level(logging.WARNING, "npu_keras")
    made, without = trained
    cls = getattr(callbacks, name)
    callback = cls(**TABLE[name].arguments)
    before = int(made.optimizer.attempted_steps)
    for _ in range(2):
        history = run(made, callback)
        assert set(history) - without == documented_keys(cls)
        assert set(history) >= without
        assert all(len(values) == 1 for values in history.values())
    steps = int(made.optimizer.attempted_steps) - before
    assert steps == 2 * 6
    assert callback.model is made


def test_what_ranks_need_is_refused_without_steps(monkeypatch):
    monkeypatch.delenv("NPU_KERAS_STEPS", raising=False)
    with pytest.raises(ValueError, match="Received: steps=None"):
        callbacks.StepLimit()


@pytest.mark.parametrize(
    "name", ["DistributionReport", "LossScaleLogger", "LossScalePlot", "OverflowGuard"]
)
@pytest.mark.parametrize("host", HOSTS)
def test_a_model_without_loss_scaling_is_refused_by_name(name, host):
    made = model(host)
    made.compile("sgd", "mse")
    callback = getattr(callbacks, name)()
    callback.set_model(made)
    with pytest.raises(ValueError, match=f"{name} needs .* Received: model.optimizer="):
        callback.on_train_begin()
