# SPDX-License-Identifier: Apache-2.0
"""However a step is run, it gives the same weights, and a skipped one leaves no trace."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from scaled import INF, NAN, make, values

import npu_keras
from npu_keras.masking import masked

SHAPES = ((4, 3), (3,))
PATTERNS = [np.arange(1, 1 + np.prod(shape), dtype="float32").reshape(shape) for shape in SHAPES]


@pytest.fixture(autouse=True)
def default_size():
    yield
    npu_keras.set_fused_update_min_bytes()


@pytest.fixture
def fused():
    npu_keras.set_fused_update_min_bytes(0)


class OwnRule(keras.optimizers.SGD):
    """Writes with an operation that XLA does not know and no mask reaches."""

    def update_step(self, gradient, variable, learning_rate):
        step = tf.numpy_function(lambda g: 0.1 * g, [gradient], tf.float32)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=step)


class OwnRuleForXla(keras.optimizers.SGD):
    """Writes with an operation that no mask reaches."""

    def update_step(self, gradient, variable, learning_rate):
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=0.1 * gradient)


KERAS_3 = {
    "AdamW, EMA": (keras.optimizers.AdamW, {"use_ema": True, "global_clipnorm": 1.0}),
    "Nadam": (keras.optimizers.Nadam, {}),
    "averages now and then": (
        keras.optimizers.SGD,
        {"use_ema": True, "ema_overwrite_frequency": 2},
    ),
    "accumulation": (keras.optimizers.SGD, {"gradient_accumulation_steps": 2}),
}


def trained(optimizer, *, xla=False, steps=(1.0, -0.5, INF, 2.0, NAN, 0.25)):
    """Values of weights and state after some steps, and before and after each that overflowed."""
    variables = [keras.Variable(np.full(s, -0.0, "float32"), name=f"w{len(s)}") for s in SHAPES]
    if isinstance(optimizer, tf_keras.optimizers.Optimizer):
        variables = [variable.value for variable in variables]
    statistic = tf.Variable(0.0)
    optimizer.build(variables)
    optimizer.protect([statistic])
    optimizer.scale_loss(0.0)

    @tf.function(jit_compile=xla)
    def step(factor):
        statistic.assign_add(factor)
        gradients = [factor * 8.0 * tf.constant(pattern) for pattern in PATTERNS]
        optimizer.apply(gradients, variables)

    def snapshot():
        inner = optimizer.inner_optimizer.variables
        inner = inner() if callable(inner) else inner
        return [v.numpy().tobytes() for v in [*variables, *inner, statistic]]

    traces = []
    for factor in steps:
        before = snapshot()
        step(tf.constant(factor))
        if not np.isfinite(factor):
            traces.append(snapshot() == before)
    assert traces == [True] * len(traces)
    assert step.experimental_get_tracing_count() == 1
    return values([*variables, *optimizer.variables])


def scaled(base, **settings):
    return make("NPULossScaleOptimizer", base, npu_keras.FixedLossScaleManager(8), **settings)


@pytest.mark.parametrize("name", KERAS_3)
def test_fused_and_masked_steps_give_the_weights_of_branched_ones(name):
    base, settings = KERAS_3[name]
    settings = {"learning_rate": 0.1, **settings}
    npu_keras.set_fused_update_min_bytes(None)
    branched = trained(scaled(base, **settings))
    npu_keras.set_fused_update_min_bytes(0)
    for run in (trained(scaled(base, **settings)), trained(scaled(base, **settings), xla=True)):
        for own, right in zip(run, branched, strict=True):
            np.testing.assert_allclose(own, right, rtol=2e-5, atol=1e-7)


def test_steps_of_tf_keras_are_fused_and_masked_too(fused, caplog):
    caplog.set_level(logging.DEBUG, "npu_keras")

    def optimizer():
        inner = tf_keras.optimizers.AdamW(0.1, weight_decay=0.01, use_ema=True)
        manager = npu_keras.FixedLossScaleManager(8)
        return npu_keras.tf_keras.NPULossScaleOptimizer(inner, manager)

    runs = [trained(optimizer(), xla=xla) for xla in (False, True)]
    assert not caplog.messages
    npu_keras.set_fused_update_min_bytes(None)
    branched = trained(optimizer())
    for run in runs:
        for own, right in zip(run, branched, strict=True):
            np.testing.assert_allclose(own, right, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(("rule", "xla"), [(OwnRule, False), (OwnRuleForXla, True)])
def test_a_rule_that_cannot_be_compiled_or_masked_is_branched(rule, xla, fused, caplog):
    caplog.set_level(logging.DEBUG, "npu_keras")
    weights = trained(scaled(rule, learning_rate=0.1), xla=xla)
    expected = -0.1 * 2.75 * np.arange(1.0, 4.0)
    np.testing.assert_allclose(weights[1], expected, rtol=1e-5)
    if not xla:
        assert caplog.messages == ["The update is not fused: XLA cannot compile PyFunc"]


def traced(optimizer, gradients, variables):
    optimizer.build(variables)
    optimizer.scale_loss(0.0)
    tf.function(lambda: optimizer.apply(gradients, variables)).get_concrete_function()


@pytest.mark.parametrize(
    ("min_bytes", "settings", "reason"),
    [
        (None, {}, "it has been turned off"),
        (61, {}, "60 bytes in 2 dense gradients, and it is done from 61 on"),
        (0, {"gradient_accumulation_steps": 2}, "gradients are accumulated"),
        (0, {"use_ema": True, "ema_overwrite_frequency": 2}, "overwritten with their averages"),
        (60, {}, None),
    ],
)
def test_a_debug_line_says_why_an_update_is_not_fused(min_bytes, settings, reason, caplog):
    caplog.set_level(logging.DEBUG, "npu_keras")
    npu_keras.set_fused_update_min_bytes(min_bytes)
    variables = [keras.Variable(np.ones(shape, "float32")) for shape in SHAPES]
    optimizer = scaled(keras.optimizers.SGD, learning_rate=0.1, **settings)
    traced(optimizer, [tf.ones(shape) for shape in SHAPES], variables)
    said = [m for m in caplog.messages if m.startswith("The update is not fused: ")]
    assert len(said) == (reason is not None)
    assert all(reason in message for message in said)


def test_more_variables_than_64_must_be_larger_in_sum(caplog):
    """A cluster takes time to compile for each variable."""
    caplog.set_level(logging.DEBUG, "npu_keras")
    variables = [keras.Variable(np.ones(2, "float32")) for _ in range(96)]
    for min_bytes, fused in ((512, True), (513, False)):  # 96 * 8 = 768 = 96 / 64 * 512
        caplog.clear()
        npu_keras.set_fused_update_min_bytes(min_bytes)
        optimizer = scaled(keras.optimizers.SGD, learning_rate=0.1)
        traced(optimizer, [tf.ones(2)] * 96, variables)
        assert (not caplog.messages) is fused, caplog.messages
        assert all("in 96 dense gradients" in message for message in caplog.messages)


def conditionals(function):
    """The conditionals with side effects in a traced function, and whether each is taken apart."""
    nodes = function.get_concrete_function().graph.as_graph_def().node
    return [n.attr["_lower_using_switch_merge"].b for n in nodes if n.op == "If"]


@pytest.mark.parametrize(
    ("count", "elements", "settings", "only_cpus", "called"),
    [
        (65, 3, {}, True, True),
        (64, 3, {}, True, False),
        (65, 3, {}, False, False),  # a called branch is on one device as a whole
        (65, 3, {"gradient_accumulation_steps": 2}, True, False),
        (65, 2**14, {}, True, False),  # it would keep all gradients to the end
    ],
)
def test_branches_of_many_small_updates_are_called(
    count, elements, settings, only_cpus, called, monkeypatch
):
    npu_keras.set_fused_update_min_bytes(None)
    monkeypatch.setattr(npu_keras.execution, "_has_only_cpus", lambda: only_cpus)
    variables = [keras.Variable(np.zeros(elements, "float32")) for _ in range(count)]
    optimizer = scaled(keras.optimizers.SGD, learning_rate=0.1, **settings)
    optimizer.build(variables)
    optimizer.scale_loss(0.0)
    step = tf.function(lambda: optimizer.apply([tf.ones(elements)] * count, variables))
    assert conditionals(step).count(False) == called


@pytest.mark.parametrize("name", ["AdamW, EMA", "Nadam"])
def test_called_branches_give_the_weights_of_others(name, monkeypatch):
    npu_keras.set_fused_update_min_bytes(None)
    base, settings = KERAS_3[name]
    lowered = trained(scaled(base, learning_rate=0.1, **settings))
    monkeypatch.setattr(npu_keras.execution, "MANY_VARIABLES", 1)
    called = trained(scaled(base, learning_rate=0.1, **settings))
    for own, right in zip(called, lowered, strict=True):
        np.testing.assert_allclose(own, right, rtol=2e-5, atol=1e-7)


def clusters(function):
    """Names of the compiled functions in a traced one."""
    library = function.get_concrete_function().graph.as_graph_def().library.function
    return [f.signature.name for f in library if f.attr["_XlaMustCompile"].b]


def test_sparse_gradients_stay_outside_of_the_cluster(fused):
    table, dense = (keras.Variable(np.ones((4, 2), "float32")) for _ in range(2))
    optimizer = scaled(keras.optimizers.Adam, learning_rate=0.1)
    optimizer.build([table, dense])
    optimizer.scale_loss(0.0)

    @tf.function
    def step():
        rows = tf.IndexedSlices(tf.fill([2, 2], 8.0), tf.constant([1, 3]), tf.constant([4, 2]))
        optimizer.apply([rows, tf.fill([4, 2], 8.0)], [table, dense])

    assert len(clusters(step)) == 1
    step()
    np.testing.assert_allclose(table[:, 0], [1, 0.9, 1, 0.9], rtol=1e-5)
    np.testing.assert_allclose(dense, np.full((4, 2), 0.9), rtol=1e-5)
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("scale", [1.0, 2.0**15, 2.0**127, 3.0 * 2.0**60])
def test_a_compiled_division_by_the_scale_is_the_division(scale):
    unscale = tf.function(npu_keras.unscaling.unscale, jit_compile=True)
    gradients = tf.constant([1.0, -3.5, 2.0**-140, -(2.0**127), 1.1], tf.float32)
    exact = gradients.numpy().astype("float64") / scale
    (own,) = unscale([gradients], tf.constant(scale))
    np.testing.assert_allclose(own, exact, rtol=2e-7, atol=float(np.finfo("float32").tiny))


@pytest.mark.parametrize("size", [-1, 1.5, "1 MB", True])
def test_a_size_is_a_number_of_bytes(size):
    with pytest.raises(ValueError, match="a number of bytes from 0 on, or None"):
        npu_keras.set_fused_update_min_bytes(size)


def test_a_mask_reaches_every_method_and_is_taken_away_again():
    start = np.array([-0.0, 1.0, NAN], "float32")
    variable = tf.Variable(start)
    rows = tf.IndexedSlices(tf.constant([5.0]), tf.constant([1]))
    writes = {
        "assign": ([2.0, 2.0, 2.0], [2, 2, 2]),
        "assign_add": ([2.0, 2.0, 2.0], [2, 3, NAN]),
        "assign_sub": ([2.0, 2.0, 2.0], [-2, -1, NAN]),
        "scatter_add": (rows, [-0.0, 6, NAN]),
        "scatter_sub": (rows, [-0.0, -4, NAN]),
        "scatter_update": (rows, [-0.0, 5, NAN]),
    }
    for name, (value, written) in writes.items():
        for condition in (False, True):
            variable.assign(start)
            with masked([variable, variable], tf.constant(condition)):
                getattr(variable, name)(value)
            assert not vars(variable).keys() & writes.keys()
            expected = np.array(written if condition else start, "float32")
            assert variable.numpy().tobytes() == expected.tobytes(), (name, condition)
