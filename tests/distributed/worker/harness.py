# SPDX-License-Identifier: Apache-2.0
"""Many checks in one start of TensorFlow: every rank runs all of them and prints what it saw.

The tests of this folder read the lines; see `reports.py`.
"""

import contextlib
import hashlib
import json
import sys
import time
import traceback

import keras
import numpy as np
import tensorflow as tf

import npu_keras
from npu_keras import ExponentialUpdateLossScaleManager, distribute

MARK = "CHECK "
TIMEOUT_S = 20.0
INF, NAN = float("inf"), float("nan")
_checks = []


def check(function):
    """Registers a function whose result, as JSON, is the report of a rank."""
    _checks.append(function)
    return function


def run(ranks=True):
    """Runs the checks in the order of their registration, or those named on the command line.

    Args:
        ranks: bool, whether there is an engine; every check then starts on all ranks together.
    """
    if ranks:
        distribute.engine(timeout_s=TIMEOUT_S)
    for function in [c for c in _checks if not sys.argv[1:] or c.__name__ in sys.argv[1:]]:
        if ranks:
            distribute.barrier()
        since = time.monotonic()
        report = _report(function)
        seconds = round(time.monotonic() - since, 1)
        print(MARK + json.dumps([function.__name__, report, seconds]), flush=True)


def _report(function):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    try:
        return function()
    except Exception as error:
        return {"error": str(error), "traceback": traceback.format_exc()}


def manager(scale=8.0, grow=1000):
    return ExponentialUpdateLossScaleManager(scale, incr_every_n_steps=grow, decr_ratio=0.5)


def scaled(inner=None, mode="inf_nan", tail=False, scale_manager=None, **settings):
    """A distributed loss-scaled optimizer that knows its loss was scaled."""
    optimizer = npu_keras.NPUOptimizer(
        inner or keras.optimizers.SGD(0.1),
        scale_manager or manager(),
        is_distributed=True,
        is_loss_scale=True,
        is_tailing_optimization=tail,
        overflow_mode=mode,
        aggregation=npu_keras.GradientAggregation(**settings),
    )
    optimizer.scale_loss(0.0)
    return optimizer


def weight(value=1.0, dtype="float32", name="v"):
    return keras.Variable(np.asarray(value), dtype=dtype, name=name)


def apply(optimizer, variables, gradients):
    """One step with unscaled gradients, which are scaled here."""
    factor = tf.convert_to_tensor(optimizer.loss_scale)
    pairs = zip(gradients, variables, strict=True)
    optimizer.apply([_scaled(g, factor, v) for g, v in pairs], list(variables))


def _scaled(gradient, factor, variable):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    value = tf.broadcast_to(tf.convert_to_tensor(gradient, tf.float32) * factor, variable.shape)
    return tf.cast(value, variable.dtype)


@contextlib.contextmanager
def recorded():
    """Notes what goes through the engine: the operation, and the elements of each tensor."""
    engine, sent = distribute.engine(), []
    names = ("all_gather", "all_reduce", "broadcast")
    originals = [getattr(engine, name) for name in names]

    def noting(name, original):
        def call(tensors, **arguments):
            each = [tensors] if name == "all_gather" else tensors
            counts = [
                int(tf.size(t)) if tf.executing_eagerly() else t.shape.num_elements() for t in each
            ]
            sent.append([name, each[0].dtype.name, counts])
            return original(tensors, **arguments)

        return call

    pairs = zip(names, originals, strict=True)
    vars(engine).update({name: noting(name, original) for name, original in pairs})
    try:
        yield sent
    finally:
        for name in names:
            del vars(engine)[name]


def digest(variables):
    """One string for the exact values of variables."""
    content = hashlib.sha256()
    for variable in variables:
        content.update(np.ascontiguousarray(np.array(variable)).tobytes())
    return content.hexdigest()[:16]


def listed(variables):
    return [np.array(v, "float64").tolist() for v in variables]


class Watch(keras.callbacks.Callback):
    """Notes, after each batch, what the optimizer decided and the weights it left."""

    def __init__(self, optimizer):
        super().__init__()
        self.optimizer_watched = optimizer
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.optimizer_watched
        finite_weights = all(np.isfinite(np.array(w)).all() for w in self.model.weights)
        self.steps.append(
            {
                "applied": bool(optimizer.last_step_finite),
                "scale": float(optimizer.loss_scale),
                "iterations": int(np.array(optimizer.iterations)),
                "weights": digest(self.model.weights),
                "slots": digest(optimizer.variables),
                "finite": finite_weights,
            }
        )


def events(optimizer):
    return [[e.attempt, e.kind, e.rank, e.variable] for e in optimizer.journal.drain()]


def error_of(function):
    """What a call raises, as text; None if it raises nothing."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def rank():
    return distribute.rank()


def size():
    return distribute.size()
