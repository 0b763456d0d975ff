# SPDX-License-Identifier: Apache-2.0
"""What the tests of the `tf.compat.v1` flavour share: one loop for graphs and for eager steps."""

import os

import numpy as np
import tensorflow as tf

from npu_keras import ExponentialUpdateLossScaleManager
from npu_keras.v1 import NPULossScaleOptimizer, NPUOptimizer

v1 = tf.compat.v1
WITHOUT_V2 = "NPU_KERAS_TESTS_WITHOUT_V2" in os.environ
CONTEXTS = ["graph"] if WITHOUT_V2 else ["graph", "function", "eager"]
INF, NAN = float("inf"), float("nan")


def manager(scale=8.0, grow=1000, every=1, ratio=2.0, decr=0.5):
    return ExponentialUpdateLossScaleManager(scale, grow, every, ratio, decr)


def scaled(inner=None, scale_manager=None, kind="NPULossScaleOptimizer", **settings):
    inner = inner or v1.train.GradientDescentOptimizer(0.5)
    scale_manager = scale_manager or manager()
    if kind == "NPUOptimizer":
        return NPUOptimizer(inner, scale_manager, is_loss_scale=True, **settings)
    return NPULossScaleOptimizer(inner, scale_manager, **settings)


def session():
    """A session of the graph, its variables initialized."""
    opened = v1.Session()
    opened.run(v1.global_variables_initializer())
    return opened


class Loop:
    """Steps of one optimizer on `loss(variables, *feeds)`, in one of the `CONTEXTS`.

    Args:
        context: `"graph"`, `"function"` or `"eager"`.
        make: makes the optimizer.
        values: initial values of the variables.
        loss: takes the list of variables and what is fed.
        feeds: examples of what is fed.
        between: what the script does to the pairs of `compute_gradients`.
    """

    def __init__(self, context, make, values, loss, feeds, between=list):
        self.context = context
        self._graph = tf.Graph() if context == "graph" else None
        if context != "graph":
            self._make(make, values)
            step = self._eager_step(loss, between)
            self._step = tf.function(step) if context == "function" else step
            return
        with self._graph.as_default():
            self._make(make, values)
            self.feeds = [v1.placeholder(tf.float32, np.shape(feed)) for feed in feeds]
            pairs = self.optimizer.compute_gradients(
                loss(self.variables, *self.feeds), self.variables
            )
            self._op = self.optimizer.apply_gradients(between(pairs), global_step=self.global_step)
            self.session = session()

    def _make(self, make, values):
        self.optimizer = make()
        self.variables = [
            v1.Variable(np.asarray(value, np.float32), name=f"v{i}")
            for i, value in enumerate(values)
        ]
        self.global_step = v1.Variable(np.int64(0), trainable=False, name="global_step")

    def _eager_step(self, loss, between):
        def step(*feeds):
            pairs = self.optimizer.compute_gradients(
                lambda: loss(self.variables, *feeds), self.variables
            )
            self.optimizer.apply_gradients(between(pairs), global_step=self.global_step)

        return step

    def step(self, *feeds):
        feeds = [np.asarray(feed, np.float32) for feed in feeds]
        if self._graph is None:
            self._step(*[tf.constant(feed) for feed in feeds])
        else:
            self.session.run(self._op, dict(zip(self.feeds, feeds, strict=True)))

    def read(self, what):
        """Values of variables, or of one."""
        if self._graph is not None:
            return self.session.run(what)
        return [v.numpy() for v in what] if isinstance(what, list) else what.numpy()

    def journal(self):
        if self._graph is None:
            return self.optimizer.journal.drain()
        with self._graph.as_default(), self.session.as_default():
            return self.optimizer.journal.drain()

    def everything(self):
        """All weights, slots and the number of steps."""
        slots = [
            self.optimizer.get_slot(variable, name)
            for name in self.optimizer.get_slot_names()
            for variable in self.variables
        ]
        slots = [slot for slot in slots if slot is not None]
        others = [v for v in self.optimizer.variables() if "power" in v.name]
        return self.read([*self.variables, *slots, *others, self.global_step])


def weighted(variables, x):
    """A loss whose gradient is `x` in every variable; the last one is not used."""
    return tf.add_n([tf.reduce_sum(v * x) for v in variables[:-1]])


def assert_equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
