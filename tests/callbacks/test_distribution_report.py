# SPDX-License-Identifier: Apache-2.0
import keras
import numpy as np
import pytest
import tensorflow as tf
from hosts import HOSTS, batches, fit, mean_output, model, optimizer

from npu_keras.callbacks import DistributionReport, LossScaleLogger, OverflowGuard
from npu_keras.channels import GradientList
from npu_keras.distribution import HIGHEST, LOWEST, GradientObserver

INF, NAN = float("inf"), float("nan")


class State:
    """What an observer reads of an optimizer."""

    def __init__(self, loss_scale=1.0):
        self.loss_scale = tf.Variable(loss_scale)
        self.attempted_steps = tf.Variable(0, dtype=tf.int64)


def looked(gradients, positions=None, loss_scale=1.0, every=1, steps=1, raw=(), jit=None):
    """What an observer of as many variables counts in some steps."""
    positions = range(len(gradients)) if positions is None else positions
    names = [f"v{i}" for i in range(max(positions) + 1)]
    variables = [tf.Variable(0.0) for _ in names]
    observer, state = GradientObserver(names, variables, every), State(loss_scale)

    def step():
        observer.look(GradientList(gradients, list(positions)), state, raw.__contains__)
        state.attempted_steps.assign_add(1)

    function = step if jit is None else tf.function(step, jit_compile=jit, autograph=False)
    for _ in range(steps):
        function()
    return observer.read(loss_scale)


def by_exponent(measured, row=0):
    pairs = zip(measured.exponents.tolist(), measured.counts[row].tolist(), strict=True)
    return {exponent: count for exponent, count in pairs if count}


VALUES = [0.0, -0.0, 1.0, 1.9999999, -2.0, 0.75, 2.0**-60, INF, -INF, NAN, 3e38, 2.0**-120]
COUNTS = {LOWEST: 1, -60: 1, -1: 1, 0: 2, 1: 1, HIGHEST: 1}


@pytest.mark.parametrize("jit", [None, False, True])
def test_every_element_is_counted_once_by_its_power_of_two(jit):
    measured = looked([tf.constant(VALUES)], jit=jit)
    assert by_exponent(measured) == COUNTS
    assert (measured.zeros.tolist(), measured.not_finite.tolist()) == ([2], [3])
    assert measured.counts.dtype == measured.zeros.dtype == np.int64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_counted_alike(dtype):
    gradient = tf.cast([1.0, 3.0, -0.25, 0.0, INF], dtype)
    measured = looked([gradient])
    assert by_exponent(measured) == {-2: 1, 0: 1, 1: 1}
    assert (measured.zeros.tolist(), measured.not_finite.tolist()) == ([1], [1])


def test_the_scale_is_taken_out_where_it_is_in():
    gradient = tf.constant([1000.0, 1999.0, 2000.0])
    measured = looked([gradient, gradient], loss_scale=1000.0, raw=[1])
    assert by_exponent(measured, 0) == {0: 2, 1: 1}
    assert by_exponent(measured, 1) == {9: 1, 10: 2}
    assert measured.loss_scale == 1000.0


def test_rows_of_a_sparse_gradient_and_variables_without_a_gradient():
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([7]), tf.constant([10, 2]))
    measured = looked([rows, tf.constant([4.0])], positions=[2, 0])
    assert [by_exponent(measured, i) for i in range(3)] == [{2: 1}, {}, {0: 1, 1: 1}]
    assert measured.variables == ("v0", "v1", "v2")


@pytest.mark.parametrize("every, steps, looks", [(1, 3, 3), (3, 6, 2), (3, 7, 3), (100, 5, 1)])
def test_only_every_nth_step_is_looked_at(every, steps, looks):
    measured = looked([tf.constant([1.0])], every=every, steps=steps, jit=False)
    assert by_exponent(measured) == {0: looks}


@pytest.mark.parametrize("host", HOSTS)
def test_a_training_is_measured_and_leaves_nothing_behind(host):
    made = model(host)
    report = DistributionReport(every=2)
    with pytest.raises(RuntimeError, match="has seen no training yet"):
        report.result()
    fit(made, batches(5, bad=[2, 3]), report)
    measured = report.result()
    names = [name.split("/")[-1] for name in measured.variables]
    assert names == ["gamma", "beta", "kernel", "bias"]
    total = measured.counts.sum(axis=1) + measured.zeros + measured.not_finite
    assert total.tolist() == [6, 6, 6, 3]  # steps 1, 3 and 5, of which 3 is bad
    assert measured.not_finite[names.index("kernel")] == 2
    assert by_exponent(measured, names.index("bias")) == {0: 3}  # the derivative of a mean
    assert measured.loss_scale == float(made.optimizer.loss_scale.numpy())
    assert [row["variable"] for row in report.to_records()] == list(measured.variables)
    assert report.summary().startswith("Loss scale 2**13. In float16, scales from ")

    fit(made, batches(5))
    assert report.result() is measured
    fit(made, batches(1), report)
    assert by_exponent(report.result(), names.index("bias")) == {0: 1}


@pytest.mark.parametrize("host", HOSTS)
def test_replicas_are_added_up(host):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        made = model(host, jit_compile=False)
    report = DistributionReport(every=1)
    guard = OverflowGuard(max_consecutive_skips=1)
    fit(made, batches(8, bad=[2]), report, LossScaleLogger(verbose=0), guard, batch_size=2)
    measured = report.result()
    total = measured.counts.sum(axis=1) + measured.zeros + measured.not_finite
    assert total.tolist() == [2 * 4 * 2, 2 * 4 * 2, 2 * 4 * 2, 2 * 4]
    # tf_keras divides a loss that is a scalar by the number of replicas, Keras 3.15.1 does not.
    assert by_exponent(measured, 3) == {0 if host == "keras" else -1: 8}
    assert measured.not_finite.tolist()[2:] == [2, 0]
    assert made.optimizer.journal.snapshot().skipped_steps == 1


def test_a_model_without_weights_is_refused():
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile(optimizer(), loss=mean_output)
    report = DistributionReport()
    report.set_model(made)
    with pytest.raises(ValueError, match="call `model.build"):
        report.on_train_begin()
