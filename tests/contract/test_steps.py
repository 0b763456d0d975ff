# SPDX-License-Identifier: Apache-2.0
"""What a step does and what a skipped one leaves behind: the same in every flavour."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from flavours import FLAVOURS, INF, NAN, Rows, assert_bit_equal, manager, steps

from npu_keras import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)
from npu_keras.overflow import install_float_status

CASES = json.loads((Path(__file__).parents[1] / "data/optimizers.json").read_text())["cases"]
LARGEST = float(np.finfo(np.float32).max)
MODES = ("inf_nan", "saturation")


def case_name(case):
    clip = f"-clip{case['global_clipnorm']}" if case["global_clipnorm"] else ""
    return f"{case['optimizer']}-{next(iter(case['manager'].values())):.0f}{clip}"


def inner_of(flavour, case):
    """The optimizer with which TensorFlow 1.15.5 made the run."""
    return {
        "adam": lambda: flavour.adam(0.01, epsilon=1e-8),
        "momentum": lambda: flavour.momentum(0.02),
        "sgd": lambda: flavour.sgd(0.05),
    }[case["optimizer"]]()


# All cases of Keras 3 and of `tf.compat.v1` stand in tests of their own.
@pytest.mark.parametrize(
    "flavour,case",
    [
        pytest.param(flavour, case, id=f"{flavour.name}-{case_name(case)}")
        for flavour in FLAVOURS
        for number, case in enumerate(CASES)
        if flavour.name.startswith("tf_keras") or number % 3 == 1
    ],
)
def test_every_step_of_tensorflow_1(flavour, case):
    fixed = "loss_scale" in case["manager"]
    cls = FixedLossScaleManager if fixed else ExponentialUpdateLossScaleManager

    def make(flavour):
        return flavour.scaled(inner_of(flavour, case), cls(**case["manager"]))

    run = flavour.run(make, [case["w0"], case["b0"]], clip=case["global_clipnorm"], eager=False)
    xs, ys = np.float32(case["x"]), np.float32(case["y"])
    for number, want in enumerate(case["trace"]):
        w, b = run.weights()
        error = xs[number] @ w + b - ys[number]
        gradients = [2 * xs[number].T @ error / len(error), 2 * np.mean(error)]
        bad = number in case["bad_steps"]
        run.step(*[np.float32(g * INF if bad else g) for g in gradients])
        wanted = np.float32([*want["w"], want["b"]])
        got = np.concatenate([run.weights()[0], [run.weights()[1]]])
        tolerance = flavour.rounding * np.abs(wanted).max()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance, err_msg=f"step {number}")
        assert run.scale() == want["scale"]
        assert run.applied() == want["global_step"]
    assert [e.attempt - 1 for e in run.events() if e.skipped] == case["bad_steps"]


def planted(count=50, bad=(0, 7, 8, 20, 33)):
    """Gradients of two variables; in the bad steps one has an infinity or a NaN in it."""
    rng = np.random.default_rng(3)
    taken = [(rng.standard_normal((2, 3)), rng.standard_normal(3)) for _ in range(count)]
    for number in bad:
        taken[number][number % 2][..., 0] = (INF, -INF, NAN)[number % 3]
    return taken, [step for number, step in enumerate(taken) if number not in bad]


@pytest.mark.parametrize("inner", ["adam", "momentum"])
def test_weights_after_50_steps_are_equal_across_flavours(inner):
    taken, good = planted()
    values = [np.ones((2, 3)), np.zeros(3)]
    make = lambda flavour: flavour.scaled(  # noqa: E731
        getattr(flavour, inner)(0.01), manager(2.0**10, grow=4)
    )
    runs = [steps(flavour.run(make, values, eager=False), taken) for flavour in FLAVOURS]
    first = runs[0]
    for run in runs[1:]:
        for mine, its in zip(run.weights(), first.weights(), strict=True):
            np.testing.assert_allclose(mine, its, rtol=0, atol=1e-6)
        assert (run.scale(), run.counters()) == (first.scale(), first.counters())
    # The same events, down to the number of infinities and the place of the variable.
    told = [[event._replace(variable=_position(event)) for event in run.events()] for run in runs]
    assert all(each == told[0] for each in told)
    assert [e.attempt - 1 for e in told[0] if e.skipped] == [0, 7, 8, 20, 33]
    assert [(e.bad_variables, e.infs, e.nans, e.variable) for e in told[0] if e.skipped] == [
        (1, 2, 0, "v0"),
        (1, 1, 0, "v1"),
        (1, 0, 2, "v0"),
        (1, 0, 2, "v0"),
        (1, 1, 0, "v1"),
    ]


def _position(event):
    return event.variable and event.variable.split("/")[-1]


@pytest.mark.parametrize("mode", MODES)
def test_a_skipped_step_leaves_no_trace(flavour, mode):
    taken, good = planted(14, bad=(0, 5, 6, 13))

    def make(flavour):
        return flavour.scaled(flavour.adam(0.1), manager(4.0, grow=3), overflow_mode=mode)

    values = [np.ones((2, 3)), np.zeros(3)]
    eager = mode == "saturation"
    run = steps(flavour.run(make, values, eager=eager), taken)
    clean = steps(flavour.run(make, values, eager=eager), good)
    assert_bit_equal(run.everything(), clean.everything())
    assert run.applied() == len(good)
    assert run.counters()["skipped_steps"] == 4
    assert not run.last_step_finite()


def test_growth_and_fall_follow_the_manager(flavour):
    run = flavour.run(lambda f: f.scaled(scale_manager=manager(8.0, grow=2, every=2)), [1.0])
    scales = []
    for gradient in [1, INF, 1, INF, 1, 1, 1, INF, INF]:
        run.step(gradient)
        scales.append(run.scale())
    assert scales == [8, 8, 8, 4, 4, 8, 8, 8, 4]
    assert run.counters() == {
        "good_steps": 0,
        "bad_steps": 0,
        "attempted_steps": 9,
        "skipped_steps": 4,
    }
    kinds = [(event.attempt, event.kind) for event in run.events()]
    assert kinds == [(2, "skip"), (4, "back off"), (6, "grow"), (8, "skip"), (9, "back off")]


@pytest.mark.parametrize("mode", MODES)
def test_the_largest_number_is_an_overflow_where_hardware_saturates(flavour, mode):
    run = flavour.run(
        lambda f: f.scaled(f.sgd(1e-37), FixedLossScaleManager(1), overflow_mode=mode), [0.0]
    )
    run.step(LARGEST)
    saturates = mode == "saturation"
    assert run.counters()["skipped_steps"] == saturates
    assert (run.weights()[0] == 0.0) == saturates
    run.step(0.9 * LARGEST)
    assert run.counters()["skipped_steps"] == saturates


def test_a_status_register_is_read_once_a_step_and_cleared(flavour):
    class Register:
        """Reads as set in every third step."""

        def __init__(self):
            self.reads, self.clears = [], 0

        def get(self):
            def read():
                self.reads.append(len(self.reads) % 3 == 2)
                return self.reads[-1]

            return tf.reshape(tf.numpy_function(read, [], tf.bool), [])

        def clear(self):
            def count():
                self.clears += 1
                return True

            return tf.numpy_function(count, [], tf.bool)

    register = Register()
    install_float_status(register)
    run = flavour.run(
        lambda f: f.scaled(scale_manager=FixedLossScaleManager(1), overflow_mode="saturation"),
        [0.0],
    )
    for _ in range(6):
        run.step(-1.0)
    assert run.weights()[0] == 4.0
    assert [event.attempt for event in run.events()] == [3, 6]
    assert len(register.reads) == register.clears == 6


def test_sparse_and_missing_gradients(flavour):
    run = flavour.run(
        lambda f: f.scaled(f.sgd(1.0), manager(1024.0)), [np.ones((4, 1)), 1.0, np.ones(2)]
    )
    rows = Rows((1.0, 2.0, 3.0), (0, 2, 2))
    run.step(rows, None, [1.0, 1.0])
    run.step(rows._replace(values=(1.0, INF, -INF)), None, [1.0, 1.0])
    table, missing, dense = run.weights()
    assert table.ravel().tolist() == [0.0, 1.0, -4.0, 1.0]
    assert (float(missing), dense.tolist()) == (1.0, [0.0, 0.0])
    (event,) = run.events()
    assert (event.kind, _position(event), event.bad_variables) == ("back off", "v0", 1)


def test_rows_whose_sum_overflows_are_an_overflow(flavour):
    run = flavour.run(lambda f: f.scaled(f.sgd(1e-38), manager(1.0)), [np.ones((3, 1))])
    run.step(Rows((LARGEST * 0.75, LARGEST * 0.75), (1, 1)))
    assert run.counters()["skipped_steps"] == 1


def test_without_a_check_everything_is_applied(flavour):
    unchecked = FixedLossScaleManager(8, enable_overflow_check=False)
    run = flavour.run(lambda f: f.scaled(scale_manager=unchecked), [1.0])
    run.step(INF)
    assert run.weights()[0] == -INF
    assert run.counters()["skipped_steps"] == 0


class Halving(LossScaleManager):
    """A user's manager that keeps its scale in Python and overrides what is documented, only."""

    def __init__(self):
        self.scale = 64.0

    def get_loss_scale(self):
        return self.scale

    def update_loss_scale(self, finite_grads):
        if not finite_grads:
            self.scale /= 2


def test_a_manager_with_a_state_of_its_own(flavour):
    run = flavour.run(lambda f: f.scaled(scale_manager=Halving()), [0.0])
    scales = []
    for gradient in (-1.0, INF, -1.0, INF):
        run.step(gradient)
        scales.append(run.scale())
    assert scales == [64.0, 32.0, 32.0, 16.0]
    assert run.weights()[0] == 2.0


def test_no_gradient_at_all_is_an_error_that_moves_nothing(flavour):
    run = flavour.run(lambda f: f.scaled(), [1.0, 2.0])
    run.step(1.0, 1.0)
    before = run.counters()
    optimizer = run.optimizer
    with pytest.raises(ValueError, match="all None"):
        optimizer.apply_gradients([(None, variable) for variable in run.variables])
    assert run.counters() == before
