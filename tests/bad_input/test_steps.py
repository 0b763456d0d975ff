# SPDX-License-Identifier: Apache-2.0
"""Steps with gradients, variables and losses that do not go together, in every flavour."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from rows import check, one, row, scaled, table, tf_keras_scaled, v1_scaled, variable, weight

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:`apply_gradients` of NPULossScaleOptimizer:UserWarning"),
]


def unbuilt():
    scaled().apply([one()])


def of_another():
    optimizer = scaled()
    optimizer.build([weight()])
    optimizer.apply([one()], [weight()])


def one_more():
    optimizer, first = scaled(), weight()
    optimizer.build([first])
    optimizer.apply([one(), one()], [first, weight()])


KERAS = [
    row("before build", unbuilt, ValueError, "does not know its variables yet", "build("),
    row("of another optimizer", of_another, ValueError, "Unknown variable"),
    row("one more than built", one_more, ValueError, "Unknown variable"),
    row("gradients None", lambda: scaled().apply(None, [weight()]), TypeError, "`grads`", "list"),
    row("variables None", lambda: scaled().build(None), TypeError, "`variables`", "list"),
    row("variable text", lambda: scaled().build("ab"), TypeError, "Keras or TensorFlow variables"),
    row("one variable", lambda: scaled().build(weight()), TypeError, "must be a list"),
    row(
        "stateless", lambda: scaled().stateless_apply([], [], []), ValueError, "TensorFlow backend"
    ),
    row("protect None", lambda: scaled().protect(None), TypeError, "must be a list of variables"),
    row("protect one", lambda: scaled().protect(weight()), TypeError, "must be a list"),
    row("protect numbers", lambda: scaled().protect([1]), TypeError, "one of int"),
    row("protect tensors", lambda: scaled().protect([one()]), TypeError, "variables"),
    row("move by text", lambda: scaled().update_loss_scale("x"), TypeError, "`finite_grads`"),
    row("move by None", lambda: scaled().update_loss_scale(None), TypeError, "`finite_grads`"),
    row("move by two", lambda: scaled().update_loss_scale([True, True]), TypeError, "bool scalar"),
    row("scale is read-only", lambda: setattr(scaled(), "loss_scale", 4), AttributeError, "setter"),
    row(
        "counter is read-only", lambda: setattr(scaled(), "bad_steps", 4), AttributeError, "setter"
    ),
    *(
        row(
            f"loss {name}",
            lambda loss=loss: scaled().scale_loss(loss),
            TypeError,
            "The loss must be",
        )
        for name, loss in (
            ("None", None),
            ("text", "x"),
            ("dict", {"a": 1.0}),
            ("function", lambda: 1.0),
            ("model", keras.Sequential()),
            ("bool", True),
            ("complex", 1j),
        )
    ),
]


@table(KERAS)
def test_keras_optimizers(bad):
    check(bad)


def legacy():
    return tf_keras_scaled(tf_keras.optimizers.legacy.SGD)


TF_KERAS = [
    row("get_scaled_loss None", lambda: tf_keras_scaled().get_scaled_loss(None), TypeError, "loss"),
    row("get_scaled_loss text", lambda: legacy().get_scaled_loss("x"), TypeError, "The loss must"),
    row("unscale None", lambda: tf_keras_scaled().get_unscaled_gradients(None), TypeError, "list"),
    row("unscale text", lambda: legacy().get_unscaled_gradients(["x"]), TypeError, "gradient"),
    row("no tape", lambda: legacy().minimize(one(), [variable()]), ValueError, "`tape`"),
    row("minimize None", lambda: legacy().minimize(one, None), TypeError, "`var_list`"),
    row("minimize number", lambda: tf_keras_scaled().minimize(one, [1]), TypeError, "`var_list`"),
    row(
        "unrelated loss",
        lambda: tf_keras_scaled().minimize(one, [variable()]),
        ValueError,
        "at least one variable",
    ),
    row("weights", lambda: tf_keras_scaled().set_weights([1]), ValueError, "shapes"),
]


@table(TF_KERAS)
def test_tf_keras_optimizers(bad):
    check(bad)


def later():
    optimizer = v1_scaled()
    optimizer.apply_gradients([(one(), variable())])
    optimizer.apply_gradients([(one(), variable())])


def in_graph(call):
    def run():
        with tf.Graph().as_default():
            tf.compat.v1.get_variable("w", initializer=1.0)
            call()

    return run


STEP = "get_or_create_global_step"
IN_V1 = [
    row("loss None", lambda: v1_scaled().compute_gradients(None, [variable()]), TypeError, "loss"),
    row(
        "loss gives text",
        lambda: v1_scaled().compute_gradients(lambda: "x", [variable()]),
        TypeError,
        "The loss must be",
    ),
    row(
        "tensor eagerly",
        lambda: v1_scaled().compute_gradients(one(), [variable()]),
        RuntimeError,
        "function when eager",
    ),
    row("no variables", lambda: v1_scaled().compute_gradients(one, [1]), TypeError, "`var_list`"),
    row("later variable", later, ValueError, "has to know all its variables"),
    row(
        "scale_loss", lambda: v1_scaled().scale_loss(one()), RuntimeError, "scales the loss itself"
    ),
    row("loss text", in_graph(lambda: v1_scaled().minimize("x")), TypeError, "The loss must be"),
    row(
        "unrelated loss",
        in_graph(lambda: v1_scaled().minimize(one())),
        ValueError,
        "No gradients provided for any variable",
    ),
    row("journal", in_graph(lambda: v1_scaled().journal.drain()), RuntimeError, "in a session"),
    row(
        "global_step text",
        lambda: v1_scaled().apply_gradients([(one(), variable())], global_step="g"),
        TypeError,
        "`global_step` must be a variable",
        STEP,
    ),
]


@table(IN_V1)
def test_v1_optimizers(bad):
    check(bad)


def by_apply(make):
    """Takes a step by `apply`, or by pairs where there is none."""

    def step(gradients, variables):
        optimizer = make()
        if hasattr(optimizer, "apply"):
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return step


FLAVOURS = {
    "Keras 3": (scaled, weight),
    "tf_keras": (tf_keras_scaled, variable),
    "legacy": (legacy, variable),
    "v1": (v1_scaled, variable),
}


def steps(flavour, make, new):
    def add(name, gradient, of, error, *words):
        step = by_apply(make)
        return row(f"{flavour}: {name}", lambda: step([gradient], [of()]), error, *words)

    two, text = lambda: new(np.ones(2)), tf.constant("x")
    yield add("other shape", tf.ones([3]), two, ValueError, "shape", "(2,)", "(3,)")
    yield add("other rank", tf.ones([2, 2]), two, ValueError, "shape")
    yield add("scalar for a vector", one(), two, ValueError, "shape", "()")
    rows = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([0]), tf.constant([2, 4]))
    yield add("wide rows", rows, lambda: new(np.ones([2, 3])), ValueError, "shape", "(3,)", "(4,)")
    yield add("none at all", None, new, ValueError, "at least one variable", "None")
    yield add("text", "x", new, TypeError, "The gradient of")
    yield add("text tensor", text, new, TypeError, "must hold numbers", "string")
    yield add("bool tensor", tf.constant(True), new, TypeError, "must hold numbers", "bool")
    yield add("object", object(), new, TypeError, "must be a tensor")
    yield add("complex for a real", tf.constant(8j), new, TypeError, "must be real", "complex128")
    for dtype in ("int32", "bool"):
        number = tf.cast(one(), dtype)
        yield add(f"{dtype} variable", number, lambda d=dtype: new(1, d), TypeError, dtype, "Train")
    yield add("text for a variable", one(), lambda: "x", TypeError, "variables")
    yield add("None for a variable", one(), lambda: None, TypeError, "variables")
    yield add("tensor for a variable", one(), one, TypeError, "variables")
    if new is variable:
        yield add("variable of Keras 3", one(), weight, TypeError, "`npu_keras`")
    pairs = {"a pair": (one(), new()), "None": None, "triples": [(one(), new(), 1)], "text": "ab"}
    for name, value in pairs.items():
        yield row(
            f"{flavour}: pairs are {name}",
            lambda value=value: make().apply_gradients(value),
            TypeError,
            "`grads_and_vars` must be pairs",
        )
    yield row(f"{flavour}: no pair", lambda: make().apply_gradients([]), ValueError, "0 gradients")
    if make is not v1_scaled:
        yield row(
            f"{flavour}: two for one",
            lambda: make().apply([one(), one()], [new()]),
            ValueError,
            "2 gradients for 1 variables",
        )


STEPS = [each for name, (make, new) in FLAVOURS.items() for each in steps(name, make, new)]


@table(STEPS)
def test_steps(bad):
    check(bad)
