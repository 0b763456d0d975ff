# SPDX-License-Identifier: Apache-2.0
import keras
import numpy as np
import pytest

from npu_keras.callbacks import StepLimit
from npu_keras.cluster import STEPS


class Count(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


def fit(limit, epochs=1, batches=5, **kwargs):
    """Trains one sample a batch; returns how many steps the optimizer took."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", **kwargs)
    x, y = np.ones((batches, 2), "float32"), np.ones((batches, 1), "float32")
    model.fit(x, y, batch_size=1, epochs=epochs, verbose=0, callbacks=[limit])
    return int(model.optimizer.iterations)


def test_training_ends_after_the_limit_wherever_it_falls():
    limit = StepLimit(3)
    assert fit(limit) == 3
    assert fit(StepLimit(7), epochs=5) == 7
    assert fit(StepLimit(10), epochs=5) == 10
    assert fit(StepLimit(9), epochs=1) == 5
    assert fit(limit) == 3  # counts from the begin of each training


def test_steps_per_execution_must_fit_the_limit():
    assert fit(StepLimit(4), steps_per_execution=2) == 4
    with pytest.raises(ValueError, match="steps=3, and 2 steps at once"):
        fit(StepLimit(3), steps_per_execution=2)
    with pytest.raises(ValueError, match="steps=1, and 3 steps at once"):
        fit(StepLimit(1), steps_per_execution=3)


def test_the_limit_of_the_launcher_is_taken(monkeypatch):
    monkeypatch.setenv(STEPS, "2")
    assert fit(StepLimit()) == 2
    assert fit(StepLimit(4)) == 4


def test_no_limit_is_refused_with_what_to_give(monkeypatch):
    monkeypatch.delenv(STEPS, raising=False)
    with pytest.raises(ValueError, match="--steps N"):
        StepLimit()


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, "3"])
def test_only_whole_numbers_of_at_least_1(steps):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        StepLimit(steps)
