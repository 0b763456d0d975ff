# SPDX-License-Identifier: Apache-2.0
"""Managers at work in training: floors, ceilings, patience, and those that users write."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import (
    INF,
    KINDS,
    NAN,
    apply,
    assert_bit_equal,
    dataset,
    manager,
    sgd,
    small_model,
    weight,
)

from npu_keras import FixedLossScaleManager, LossScaleManager, NPUOptimizer, ScaleState


def stepper(optimizer, variable):
    """A compiled step for hundreds of steps; the gradient is given scaled."""
    optimizer.build([variable])

    @tf.function
    def step(gradient):
        optimizer.apply([gradient], [variable])

    return lambda gradient: step(tf.constant(gradient, tf.float32))


@pytest.mark.parametrize("kind", KINDS)
class TestBounds:
    def test_four_hundred_bad_steps_and_a_good_one(self, kind):
        variable, optimizer = weight(1.0), sgd(kind, manager(2.0**15))
        step = stepper(optimizer, variable)
        for _ in range(400):
            step(NAN)
        assert float(optimizer.loss_scale) == 1.0
        assert float(variable) == 1.0
        assert int(optimizer.skipped_steps) == 400
        step(0.0)
        assert float(variable) == 1.0
        step(1.0)
        assert float(variable) == np.float32(1.0) - np.float32(0.1)
        assert int(optimizer.iterations) == 2
        # 15 of the events lowered the scale; at the floor a bad step is a skip.
        assert optimizer.journal.snapshot().scale_backoffs == 15
        kinds = [event.kind for event in optimizer.journal.drain()]
        assert kinds == ["back off"] * 15 + ["skip"] * 385

    def test_four_hundred_zero_gradients(self, kind):
        variable, optimizer = weight(1.0), sgd(kind, manager(2.0**15, grow=1))
        step = stepper(optimizer, variable)
        for _ in range(400):
            step(0.0)
        assert float(optimizer.loss_scale) == 2.0**127
        for _ in range(3):
            step(INF)
        assert float(optimizer.loss_scale) == 2.0**124
        assert optimizer.journal.snapshot().scale_growths == 127 - 15

    def test_ceiling(self, kind):
        variable = weight(1.0)
        optimizer = sgd(kind, manager(8.0, grow=1, max_loss_scale=24.0))
        step = stepper(optimizer, variable)
        for _ in range(5):
            step(0.0)
        assert float(optimizer.loss_scale) == 24.0


def test_a_floor_below_one():
    """Gradients of 2**20 that a float16 holds only at scales below 2**-4."""
    scale_manager = manager(1.0, min_loss_scale=2.0**-10)
    variable, optimizer = weight(0.0), sgd(scale_manager=scale_manager, rate=2.0**-20)
    for _ in range(10):
        scaled = tf.cast(2.0**20 * optimizer.loss_scale, tf.float16)
        optimizer.apply([scaled], [variable])
    assert float(optimizer.loss_scale) == 2.0**-5
    assert int(optimizer.skipped_steps) == 5
    assert float(variable) == -5.0


def test_the_default_floor_is_one():
    variable, optimizer = weight(0.0), sgd(scale_manager=manager(4.0))
    apply(optimizer, variable, *[INF] * 5)
    assert float(optimizer.loss_scale) == 1.0


def test_two_bad_steps_before_the_scale_falls():
    variable, optimizer = weight(1.0), sgd(scale_manager=manager(8.0, every=2), rate=0.25)
    seen = []
    for gradient in (INF, 1.0, INF):
        apply(optimizer, variable, gradient)
        seen.append((float(optimizer.loss_scale), int(optimizer.bad_steps), float(variable)))
    assert seen == [(8.0, 1, 1.0), (8.0, 1, 0.75), (4.0, 0, 0.75)]
    first, second = optimizer.journal.drain()
    assert (first.kind, first.attempt, first.bad_steps, first.scale_after) == ("skip", 1, 1, 8.0)
    assert (second.kind, second.attempt, second.bad_steps) == ("back off", 3, 2)
    assert (second.scale_before, second.scale_after) == (8.0, 4.0)


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_scale(kind):
    variable, optimizer = weight(1.0), sgd(kind, FixedLossScaleManager(8), rate=0.5)
    apply(optimizer, variable, INF, NAN, 1.0)
    assert (float(variable), float(optimizer.loss_scale)) == (0.5, 8.0)
    assert (int(optimizer.skipped_steps), int(optimizer.iterations)) == (2, 1)
    assert [event.kind for event in optimizer.journal.drain()] == ["skip", "skip"]


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_scale_without_check_applies_everything(kind):
    unchecked = FixedLossScaleManager(8, enable_overflow_check=False)
    variable, optimizer = weight([1.0, 1.0]), sgd(kind, unchecked, rate=0.5)
    apply(optimizer, variable, [1.0, 2.0], [INF, 0.0])
    assert variable.numpy().tolist() == [-INF, 0.0]
    assert (int(optimizer.skipped_steps), int(optimizer.iterations)) == (0, 2)
    assert bool(optimizer.last_step_finite)
    assert optimizer.journal.drain() == []


def test_skips_from_a_scale_far_too_high_are_foreseeable():
    """Float16 gradients of about 2 overflow above 2**14: from 2**32, 18 halvings."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="mixed_float16"),
        ]
    )
    optimizer = NPUOptimizer(keras.optimizers.SGD(1e-3), manager(2.0**32), is_loss_scale=True)
    model.compile(optimizer, loss="mse")
    x, y = np.ones((100, 1), "float32"), np.zeros((100, 1), "float32")
    model.fit(x, y, batch_size=1, verbose=0)
    assert int(optimizer.skipped_steps) == 32 - 14
    assert int(optimizer.iterations) == 100 - 18
    assert float(optimizer.loss_scale) == 2.0**14


def test_moving_the_scale_by_hand():
    scale_manager = manager(8.0, grow=2)
    optimizer = sgd(scale_manager=scale_manager)
    optimizer.build([weight()])
    assert float(scale_manager.update_loss_scale(True)) == 8.0
    assert float(scale_manager.update_loss_scale(True)) == 16.0
    assert float(scale_manager.update_loss_scale(False)) == 8.0
    assert float(optimizer.loss_scale) == float(scale_manager.get_loss_scale()) == 8.0
    assert int(optimizer.attempted_steps) == 0
    optimizer.loss_scale.assign(2.0)
    assert float(optimizer.scale_loss(3.0)) == 6.0


class InPython(LossScaleManager):
    """Overrides just the two methods and keeps its scale in Python; thirds, for recognition."""

    def __init__(self):
        self.scale, self.calls = 729.0, []

    def get_loss_scale(self):
        return self.scale

    def update_loss_scale(self, finite_grads):
        self.calls.append(bool(finite_grads))
        if not finite_grads:
            self.scale /= 3


class InVariable(LossScaleManager):
    """The same with a variable."""

    def __init__(self):
        self.scale = tf.Variable(729.0, trainable=False)

    def get_loss_scale(self):
        return self.scale

    def update_loss_scale(self, finite_grads):
        self.scale.assign(tf.where(finite_grads, self.scale, self.scale / 3))


class Pure(LossScaleManager):
    """A fast start: sixteenths until the first good step, then halves."""

    def get_loss_scale(self):
        return 2.0**32

    def update_loss_scale(self, finite_grads):
        raise NotImplementedError

    def next_state(self, state, finite, xp):
        fast = state.good_steps == 0
        lower = xp.maximum(state.loss_scale * xp.where(fast, 1 / 16, 0.5), 1.0)
        return ScaleState(
            xp.where(finite, state.loss_scale, lower),
            xp.where(finite, state.good_steps + 1, state.good_steps),
            state.bad_steps,
        )


MODES = {
    "graph": {"jit_compile": False},
    "eager": {"run_eagerly": True},
    "xla": {"jit_compile": True},
}


def fit(scale_manager, mode):
    keras.utils.set_random_seed(0)
    model = small_model()
    optimizer = NPUOptimizer(keras.optimizers.SGD(0.01), scale_manager, is_loss_scale=True)
    model.compile(optimizer, loss="mse", **MODES[mode])
    model.fit(dataset(8, bad=(1, 2, 5)), verbose=0, shuffle=False)
    return model, optimizer


@pytest.mark.parametrize(
    "cls, mode",
    [
        (InPython, "graph"),
        (InPython, "eager"),
        (InVariable, "graph"),
        (InVariable, "eager"),
        (InVariable, "xla"),
    ],
)
def test_a_manager_that_overrides_just_two_methods(cls, mode):
    scale_manager = cls()
    _, optimizer = fit(scale_manager, mode)
    assert float(optimizer.loss_scale) == 27.0
    assert float(scale_manager.get_loss_scale()) == 27.0
    assert int(optimizer.iterations) == 5
    events = [(e.attempt, e.scale_before, e.scale_after) for e in optimizer.journal.drain()]
    assert events == [(2, 729.0, 243.0), (3, 243.0, 81.0), (6, 81.0, 27.0)]
    if cls is InPython:
        assert scale_manager.calls == [True, False, False, True, True, False, True, True]


def test_a_manager_in_python_cannot_be_compiled_by_xla():
    with pytest.raises(RuntimeError, match="InPython keeps its loss scale in Python.*jit_compile"):
        fit(InPython(), "xla")


def test_a_pure_manager_of_ones_own():
    variable = weight(1.0)
    optimizer = sgd(scale_manager=Pure(), rate=0.5)
    skips = 0
    while int(optimizer.good_steps) == 0:
        apply_float16(optimizer, variable, 1.0)
        skips = int(optimizer.skipped_steps)
    assert skips == 5  # 2**32, 28, 24, 20, 16; 2**12 fits
    assert float(optimizer.loss_scale) == 2.0**12
    apply_float16(optimizer, variable, INF)
    assert float(optimizer.loss_scale) == 2.0**11
    assert float(variable) == 0.5


def apply_float16(optimizer, variable, gradient):
    scaled = tf.cast(tf.constant(gradient) * optimizer.loss_scale, tf.float16)
    optimizer.apply([scaled], [variable])


def test_one_trace_for_many_steps():
    variable, optimizer = weight([1.0, 2.0]), sgd(scale_manager=manager(2.0**10, grow=2))
    traces = []

    @tf.function
    def step(gradient):
        traces.append(1)
        optimizer.apply([optimizer.scale_loss(gradient[0]) * gradient], [variable])

    for number in range(50):
        step(tf.constant([INF if number % 7 == 0 else 1.0, 0.0]))
    assert len(traces) <= 2  # a second one because the first made variables
    assert int(optimizer.attempted_steps) == 50
    assert int(optimizer.skipped_steps) == 8
    assert_bit_equal([optimizer.attempted_steps], [np.int64(50)])
