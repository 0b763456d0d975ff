# SPDX-License-Identifier: Apache-2.0
import logging

import keras
import numpy as np
import pytest
from hosts import HOSTS, batches, fit, manager, mean_output, model, optimizer

from npu_keras.callbacks import OverflowGuard, overflow_guard

LARGE = 1e36  # times a scale of 2**13 or more beyond float32, by itself not


@pytest.fixture(scope="module")
def plain():
    """Weights without normalisation, so that a large input is a large gradient."""
    return linear(manager(2.0**15, min_loss_scale=2.0**14))


def linear(scale_manager, rate=0.0, **settings):
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")], name="net")
    made.compile(optimizer("keras", scale_manager, rate), loss=mean_output, **settings)
    return made


def name_of(variable):
    return getattr(variable, "path", variable.name).removesuffix(":0")


def messages(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "npu_keras"]


@pytest.mark.parametrize("host", HOSTS)
def test_stop_ends_the_training_within_the_batches_between_two_looks(host, caplog):
    made = model(host)
    guard = OverflowGuard(max_consecutive_skips=4, action="stop")
    fit(made, batches(60, bad=range(21, 61), value=np.nan), guard, epochs=3)
    assert int(made.optimizer.attempted_steps) == 30
    assert made.stop_training
    first, second, third = messages(caplog)
    assert "Step 21, loss scale 2**15: the loss itself was not finite" in first
    assert "the loss was not finite in 3 steps in a row" in second
    assert "Weights that are not finite themselves: none." in second
    assert third.startswith("OverflowGuard: Step 25, loss scale 2**11: 5 steps in a row")
    assert "First to overflow: " in third

    kernel = made.layers[-1].kernel
    kernel.assign(np.full((2, 1), np.nan))
    with pytest.raises(OverflowError, match=f"3 steps in a row.*themselves: {name_of(kernel)}"):
        fit(made, batches(3), OverflowGuard(action="raise"))


def test_a_floor_warns_once_and_can_raise(plain, caplog):
    data = batches(6, bad=[1, 2, 3], value=LARGE)
    fit(plain, data, OverflowGuard(), epochs=2)
    (message,) = messages(caplog)
    assert message.startswith(
        "OverflowGuard: Step 2, loss scale 2**14: the scale is stuck at its floor of 2**14. First "
        "to overflow: net/dense/kernel. What to try: "
    )
    steps = int(plain.optimizer.attempted_steps)
    said = rf"^Step {steps + 1}, loss scale .*stuck at its floor.*to overflow: net/dense/kernel"
    with pytest.raises(OverflowError, match=said):
        fit(plain, data, OverflowGuard(on_floor="raise"))


def test_a_floor_can_stop(plain, caplog):
    steps = int(plain.optimizer.attempted_steps)
    data = batches(40, bad=range(1, 41), value=LARGE)
    fit(plain, data, OverflowGuard(on_floor="stop", max_consecutive_skips=1000), epochs=2)
    assert plain.stop_training
    assert int(plain.optimizer.attempted_steps) == steps + 10  # it looks every ten batches
    (message,) = messages(caplog)
    assert "the scale is stuck at its floor of 2**14" in message


def test_the_rate_counts_steps_whatever_the_execution(caplog):
    made = linear(manager(), steps_per_execution=5)
    guard = OverflowGuard(max_overflow_rate=0.3, window=10, action="stop")
    data = batches(20, bad=[3, 5, 11, 12], value=LARGE)
    fit(made, data, guard)
    (message,) = messages(caplog)
    assert "Step 12, loss scale 2**12: 4 of the last 10 steps were skipped, more" in message
    assert int(made.optimizer.attempted_steps) == 20  # stopped at the last of its batches


def test_a_skipped_step_is_no_nan_and_an_applied_one_is(plain, caplog):
    fit(plain, batches(12, bad=[5], value=np.nan), OverflowGuard(action="raise"))
    assert len(messages(caplog)) == 1  # the first loss that is not finite is only a warning
    plain.layers[0].bias.assign([np.nan])
    plain.optimizer.loss_scale_manager.enable_overflow_check = False
    plain.make_train_function(force=True)
    try:
        with pytest.raises(OverflowError, match=r"weights are not finite .*: net/dense/\w+"):
            fit(plain, batches(12), OverflowGuard(action="raise"))
    finally:
        plain.optimizer.loss_scale_manager.enable_overflow_check = True
        plain.layers[0].bias.assign([0.0])
        plain.make_train_function(force=True)


def test_a_weight_that_breaks_at_the_last_step_is_noticed(plain, caplog):
    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.layers[0].bias.assign([np.inf])

    fit(plain, batches(3), OverflowGuard(), epochs=1)
    assert messages(caplog) == []
    fit(plain, batches(3), Break(), OverflowGuard())
    (message,) = messages(caplog)
    assert "weights are not finite although the steps were applied. First of them: net/" in message
    plain.layers[0].set_weights([np.ones((2, 1)), np.zeros(1)])


def test_ranks_compare_their_losses_at_the_end_of_an_epoch(plain, monkeypatch):
    class Two:
        rank = 0

        def exchange(self, value, label):
            return [value, False]

    monkeypatch.setattr(overflow_guard, "peers", lambda optimizer: Two())
    guard = OverflowGuard(action="stop")
    fit(plain, batches(11), guard, epochs=2)
    assert plain.stop_training


def test_warnings_are_those_of_rank_0(plain, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "npu_keras")
    monkeypatch.setattr(overflow_guard, "speaks_for_all", lambda optimizer: False)
    fit(plain, batches(3, bad=[1]), OverflowGuard(action="stop"))
    assert messages(caplog) == []


def test_a_loss_of_no_applied_step_is_no_perfect_zero(plain):
    history = fit(plain, batches(6, bad=range(1, 7), value=np.nan), OverflowGuard())
    assert np.isnan(history.history["loss"]).all()
