# SPDX-License-Identifier: Apache-2.0
"""Private names of TensorFlow, Keras and tf_keras are listed, and nowhere else."""

import ast
import functools
import inspect
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tf_keras

import npu_keras
from npu_keras import _upstream, _upstream_tf_keras
from npu_keras.tf_keras import LossScaleMixin as TfKerasMixin

pytestmark = pytest.mark.tf

SOURCES = Path(npu_keras.__file__).parent
STANDARD = {"_asdict", "_exit", "_fields", "_make", "_replace"}
"""Names of Python's own library, public in spite of the underscore."""

OURS_TOO = {"_finish", "_lock", "_slots"}
"""Names that also stand for something of ours, which derives from nothing of theirs."""


def private(name):
    return name.isidentifier() and name[0] == "_" and name[1:2] != "_" and name[-1] != "_"


@functools.cache
def modules(upstream=False):
    files = [f for f in SOURCES.rglob("*.py") if f.name.startswith("_upstream") == upstream]
    return {file.relative_to(SOURCES).as_posix(): ast.parse(file.read_text()) for file in files}


def used(tree):
    """Private names that a module reads or writes, as attributes, as text or as keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def defined(tree):
    """Names that a module gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def listed():
    return {*_upstream.INHERITED, *_upstream.INHERITED_V1, *_upstream_tf_keras.INHERITED}


def foreign_names():
    """Private names of the classes that ours are kinds of."""
    ours = (
        type("A", (npu_keras.LossScaleMixin, keras.optimizers.SGD), {}),
        npu_keras.NPUOptimizer,
        type("B", (TfKerasMixin, tf_keras.optimizers.SGD), {}),
        type("C", (TfKerasMixin, tf_keras.optimizers.legacy.SGD), {}),
        npu_keras.tf_keras.NPUOptimizer,
        npu_keras.v1.NPUOptimizer,
        npu_keras.callbacks.OverflowGuard,
    )
    bases = {base for cls in ours for base in inspect.getmro(cls)}
    theirs = [base for base in bases if not base.__module__.startswith(("npu_keras", "test"))]
    names = {name for base in theirs for name in vars(base) if private(name)}
    sgd, legacy = tf_keras.optimizers.SGD(), tf_keras.optimizers.legacy.SGD()
    v1 = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    for instance in (keras.optimizers.SGD(), sgd, legacy, v1):
        names |= {name for name in vars(instance) if private(name)}
    return names


def test_every_foreign_private_name_is_listed():
    trees = modules()
    own = {name for tree in trees.values() for name in defined(tree)}
    foreign = foreign_names() | listed()
    unlisted = {
        f"{file}: {name}"
        for file, tree in trees.items()
        for name in used(tree)
        if private(name)
        and name not in STANDARD | OURS_TOO | listed()
        and (name in foreign or (name not in own and not file.startswith("ascend")))
    }
    assert unlisted == set()


def test_every_listed_name_is_used():
    names = {name for tree in modules().values() for name in used(tree)}
    upstream = [node for tree in modules(upstream=True).values() for node in ast.walk(tree)]
    names |= {node.attr for node in upstream if isinstance(node, ast.Attribute)}
    assert listed() - names == set()


def test_private_modules_are_imported_by_the_lists_alone():
    banned = ("keras.src", "tf_keras.src", "tensorflow.python")
    imports = {
        f"{file}: {node.module}"
        for file, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(banned)
    }
    assert imports == set()


def test_tensorflow_keeps_record_of_models_under_names_that_begin_so():
    assert any(name.startswith(_upstream.BOOKKEEPING) for name in vars(keras.Sequential()))


@pytest.mark.parametrize("name", _upstream_tf_keras.INHERITED)
def test_tf_keras_optimizers_still_have(name):
    inner = tf_keras.optimizers.SGD(0.1)
    tf_keras.mixed_precision.LossScaleOptimizer(inner)  # marks it
    made = [inner, tf_keras.optimizers.legacy.SGD(0.1)]
    assert any(hasattr(optimizer, name) for optimizer in made)


@pytest.mark.parametrize("name", _upstream.INHERITED_V1)
def test_optimizers_of_tensorflow_1_still_have(name):
    assert hasattr(tf.compat.v1.train.GradientDescentOptimizer(0.1), name)
