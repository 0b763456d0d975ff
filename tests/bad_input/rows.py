# SPDX-License-Identifier: Apache-2.0
"""Rows of bad input: what is called, which error must come, and the words it must have."""

import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import npu_keras
import npu_keras.tf_keras
import npu_keras.v1
from npu_keras import FixedLossScaleManager

V1 = tf.compat.v1.train

THEIR_OWN = (
    "/keras/src/optimizers/",
    "/keras/src/backend/common/name_scope.py",
    "/tf_keras/src/optimizers/",
    "/tensorflow/python/training/optimizer.py",
    "/matplotlib/backend_bases.py",
)
"""Where hosts check what they are given, in words of their own."""


class Row(NamedTuple):
    name: str
    call: Callable[[], Any]
    error: type[Exception]
    words: tuple[str, ...]


def row(name, call, error, *words):
    """A row; `words` must all be in the message."""
    return Row(name, call, error, words)


def table(rows: Iterable[Row]) -> Any:
    """Makes each row a test."""
    rows = list(rows)
    return pytest.mark.parametrize("bad", rows, ids=[each.name for each in rows])


def check(bad: Row) -> None:
    """The error comes, of exactly this type, with these words, and not from deep inside."""
    with pytest.raises(bad.error) as caught:
        bad.call()
    assert type(caught.value) is bad.error
    text = str(caught.value)
    assert [word for word in bad.words if word not in text] == [], text
    place = traceback.extract_tb(caught.value.__traceback__)[-1].filename
    ours = "site-packages" not in place or any(part in place for part in THEIR_OWN)
    assert ours, f"raised deep inside, in {place}"


def manager(scale=8.0):
    return FixedLossScaleManager(scale)


def sgd(**settings):
    return keras.optimizers.SGD(0.5, **settings)


def scaled(**settings):
    """A Keras 3 optimizer that knows its loss was scaled, by 8."""
    optimizer = npu_keras.NPULossScaleOptimizer(sgd(**settings), manager())
    optimizer.scale_loss(0.0)
    return optimizer


def tf_keras_scaled(inner=tf_keras.optimizers.SGD):
    """The same for tf_keras, around a new or a legacy optimizer."""
    optimizer = npu_keras.tf_keras.NPULossScaleOptimizer(inner(0.5), manager())
    optimizer.scale_loss(0.0)
    return optimizer


def v1_scaled():
    """The same for TensorFlow 1."""
    return npu_keras.v1.NPULossScaleOptimizer(V1.GradientDescentOptimizer(0.5), manager())


def weight(value=1.0, dtype="float32"):
    return keras.Variable(np.asarray(value), dtype=dtype)


def variable(value=1.0, dtype="float32"):
    return tf.Variable(np.asarray(value), dtype=dtype)


def one(value=8.0):
    """A gradient of the scaled loss: 1 times the scale."""
    return tf.constant(value)
