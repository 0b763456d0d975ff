# SPDX-License-Identifier: Apache-2.0
"""The loss-scale managers on TensorFlow and Keras tensors: the bits of the golden traces."""

import json
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from npu_keras.loss_scale import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
    ScaleState,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "data/managers.json").read_text())["cases"]
TF = SimpleNamespace(where=tf.where, minimum=tf.minimum, maximum=tf.maximum)


def tensors(state, counter=tf.int32):
    scale, good, bad = state
    return ScaleState(
        tf.constant(scale, tf.float32), tf.constant(good, counter), tf.constant(bad, counter)
    )


def run_step(step, manager, flags):
    """The states after each step, run one at a time."""
    state, rows = tensors(manager.initial_state()), []
    for finite in flags:
        state = step(state, tf.constant(bool(finite)))
        rows.append([x.numpy() for x in state])
    return rows


def run_eager(manager, flags):
    return run_step(lambda s, f: manager.next_state(s, f, TF), manager, flags)


def run_function(manager, flags):
    return run_step(tf.function(lambda s, f: manager.next_state(s, f, TF)), manager, flags)


def run_xla(manager, flags):
    step = tf.function(lambda s, f: manager.next_state(s, f, TF), jit_compile=True)
    return run_step(step, manager, flags)


def run_keras_ops(manager, flags):
    return run_step(tf.function(lambda s, f: manager.next_state(s, f, keras.ops)), manager, flags)


def run_v1_graph(manager, flags):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = ScaleState(
            *(
                v1.get_variable(name, initializer=value, use_resource=False)
                for name, value in manager.initial_state()._asdict().items()
            )
        )
        finite = v1.placeholder(tf.bool, ())
        after = manager.next_state(variables, finite, TF)
        with tf.control_dependencies(after):
            assign = [v1.assign(*pair) for pair in zip(variables, after, strict=True)]
        session.run(v1.global_variables_initializer())
        return [session.run(assign, {finite: bool(flag)}) for flag in flags]


RUNNERS = [run_eager, run_function, run_xla, run_keras_ops, run_v1_graph]


@pytest.mark.parametrize("run", RUNNERS, ids=lambda run: run.__name__)
@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_trace(run, case):
    manager = ExponentialUpdateLossScaleManager(**case["config"])
    rows = run(manager, case["finite"])
    assert [x.dtype for x in rows[0]] == [np.float32, np.int32, np.int32]
    assert np.array(rows, np.float64).tolist() == case["trace"]


@pytest.mark.parametrize("run", RUNNERS, ids=lambda run: run.__name__)
def test_bounds_of_ones_own_are_kept_bit_for_bit(run):
    manager = ExponentialUpdateLossScaleManager(
        2.0**-10, 1, 1, 1.7, 0.3, min_loss_scale=2.0**-126, max_loss_scale=0.1
    )
    flags = [1] * 12 + [0] * 90 + [1] * 20
    state, expected = manager.initial_state(), []
    for flag in flags:
        state = manager.next_state(state, flag, np)
        expected.append(state.loss_scale)
    rows = run(manager, flags)
    assert [row[0].tobytes() for row in rows] == [scale.tobytes() for scale in expected]
    assert rows[11][0] == np.float32(0.1)
    assert rows[101][0] == np.float32(2.0**-126)


@pytest.mark.parametrize("run", RUNNERS, ids=lambda run: run.__name__)
def test_fixed_scale(run):
    rows = run(FixedLossScaleManager(8), [1, 1, 0, 0, 1])
    assert np.array(rows).tolist() == [[8, 1, 0], [8, 2, 0], [8, 0, 1], [8, 0, 2], [8, 1, 2]]


@pytest.mark.parametrize("counter", [tf.int32, tf.int64])
@pytest.mark.parametrize("xp", [TF, keras.ops], ids=["tf", "keras.ops"])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    "manager", [FixedLossScaleManager(8), ExponentialUpdateLossScaleManager(8, 2)]
)
def test_counters_keep_their_dtype(manager, counter, xp, graph):
    def step(state, finite):
        return manager.next_state(state, finite, xp)

    step = tf.function(step) if graph else step
    after = step(tensors((8.0, 1, 1), counter), tf.constant(True))
    assert [x.dtype for x in after] == [tf.float32, counter, counter]
    assert int(after.bad_steps) == (1 if isinstance(manager, FixedLossScaleManager) else 0)


def test_keras_variables():
    manager = ExponentialUpdateLossScaleManager(8, 2)
    state = ScaleState(*(keras.Variable(x, dtype=x.dtype.name) for x in manager.initial_state()))
    for expected in [(8, 1, 0), (16, 0, 0)]:
        after = manager.next_state(state, True, keras.ops)
        for variable, value in zip(state, after, strict=True):
            variable.assign(value)
        assert tuple(float(x) for x in state) == expected


class VariableManager(LossScaleManager):
    """A user's manager with a TensorFlow variable in it."""

    def __init__(self):
        self.scale = tf.Variable(1024.0)

    def get_loss_scale(self):
        return self.scale.read_value()

    def update_loss_scale(self, finite_grads):
        return self.scale.assign(tf.where(finite_grads, self.scale, self.scale / 2))


@pytest.mark.parametrize("run", [run_eager, run_function, run_keras_ops], ids=lambda f: f.__name__)
def test_users_manager_with_a_variable(run):
    rows = run(VariableManager(), [1, 0, 0, 1])
    assert np.array(rows).tolist() == [[1024, 1, 0], [512, 0, 1], [256, 0, 2], [256, 1, 2]]
