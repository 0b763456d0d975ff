# SPDX-License-Identifier: Apache-2.0
"""All flavours behind one interface; a new one joins by a line in `FLAVOURS`.

A `Run` trains a few variables with gradients that the test chooses. The gradient of the unscaled
loss is exactly what was asked for: the loss is its product with the variables.
"""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import npu_keras
import npu_keras.tf_keras
import npu_keras.v1
from npu_keras import ExponentialUpdateLossScaleManager

v1 = tf.compat.v1
INF, NAN = float("inf"), float("nan")
COUNTERS = ("good_steps", "bad_steps", "attempted_steps", "skipped_steps")


class Rows(NamedTuple):
    """A sparse gradient: a value for each row, in any order, perhaps several for one row."""

    values: tuple[float, ...]
    indices: tuple[int, ...]


def manager(scale=8.0, grow=1000, every=1, ratio=2.0, decr=0.5, **bounds):
    return ExponentialUpdateLossScaleManager(scale, grow, every, ratio, decr, **bounds)


def surrogate(variables, gradients):
    """A loss whose gradients are the given ones."""
    terms = []
    for variable, gradient in zip(variables, gradients, strict=True):
        if isinstance(gradient, Rows):
            rows = tf.gather(variable, tf.constant(gradient.indices))
            terms.append(tf.reduce_sum(rows * tf.reshape(tf.stack(gradient.values), [-1, 1])))
        elif gradient is not None:
            terms.append(tf.reduce_sum(variable * gradient))
    return tf.add_n(terms)


class Flavour:
    """One kind of host: where its classes are, and how a step of it is written."""

    name: str
    home = npu_keras
    optimizers: object
    # The new Adam of Keras is not TensorFlow 1's kernel, but a dozen operations.
    rounding = 2e-6

    def sgd(self, rate=1.0):
        return self.optimizers.SGD(rate)

    def momentum(self, rate, momentum=0.9):
        return self.optimizers.SGD(rate, momentum=momentum)

    def adam(self, rate, epsilon=1e-7):
        return self.optimizers.Adam(rate, epsilon=epsilon)

    def scaled(self, inner=None, scale_manager=None, **settings):
        inner = self.sgd() if inner is None else inner
        return self.home.NPUOptimizer(
            inner, scale_manager or manager(), is_loss_scale=True, **settings
        )

    def run(self, make, values, **settings):
        return Run(self, make, values, **settings)

    # What a `Run` needs.

    def variable(self, value, name):
        return tf.Variable(value, name=name)

    def tensor(self, variable):
        return variable

    def take_step(self, run, loss):
        optimizer, variables, clip = run.optimizer, run.variables, run.clip
        with tf.GradientTape() as tape:
            scaled = optimizer.get_scaled_loss(loss())
        gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled, variables))
        if clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def slots(self, optimizer):
        variables = optimizer._updating_optimizer().variables
        return list(variables() if callable(variables) else variables)

    def applied(self, run):
        return run.optimizer.iterations


class Keras3(Flavour):
    name = "keras"
    optimizers = keras.optimizers

    def variable(self, value, name):
        return keras.Variable(value, name=name)

    def tensor(self, variable):
        return variable.value

    def take_step(self, run, loss):
        optimizer, variables = run.optimizer, run.variables
        values = [variable.value for variable in variables]
        with tf.GradientTape() as tape:
            scaled = optimizer.scale_loss(loss())
        gradients = tape.gradient(scaled, values)
        optimizer._updating_optimizer().global_clipnorm = run.clip
        optimizer.apply(gradients, variables)


class TfKeras(Flavour):
    name = "tf_keras"
    home = npu_keras.tf_keras
    optimizers = tf_keras.optimizers


class TfKerasLegacy(TfKeras):
    name = "tf_keras legacy"
    optimizers = tf_keras.optimizers.legacy
    rounding = 1e-6


class V1(Flavour):
    name = "v1"
    home = npu_keras.v1
    rounding = 1e-6

    def sgd(self, rate=1.0):
        return v1.train.GradientDescentOptimizer(rate)

    def momentum(self, rate, momentum=0.9):
        return v1.train.MomentumOptimizer(rate, momentum)

    def adam(self, rate, epsilon=1e-7):
        return v1.train.AdamOptimizer(rate, epsilon=epsilon)

    def take_step(self, run, loss):
        self.train_op(run, loss)

    def train_op(self, run, loss):
        pairs = run.optimizer.compute_gradients(loss, run.variables)
        if run.clip is not None:
            gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], run.clip)
            pairs = list(zip(gradients, run.variables, strict=True))
        return run.optimizer.apply_gradients(pairs, global_step=run.step_variable)

    def slots(self, optimizer):
        own = [name for name, _ in optimizer._scaling.state]
        return optimizer.variables()[len(own) :]

    def applied(self, run):
        return run.step_variable


class V1Graph(V1):
    name = "v1 graph"

    def run(self, make, values, **settings):
        return GraphRun(self, make, values, **settings)


FLAVOURS = [Keras3(), TfKeras(), TfKerasLegacy(), V1(), V1Graph()]


class Run:
    """Steps of one optimizer.

    Args:
        flavour: the host.
        make: function of the flavour that returns the optimizer.
        values: initial values of the variables.
        clip: global norm to which the gradients are clipped.
        eager: whether the steps are taken outside of a `tf.function`.
    """

    def __init__(self, flavour, make, values, clip=None, eager=True):
        self.flavour, self.clip = flavour, clip
        self._make(make, values)
        self._eager, self._functions = eager, {}

    def _make(self, make, values):
        self.step_variable = tf.Variable(np.int64(0), trainable=False, name="global_step")
        self.optimizer = make(self.flavour)
        self.variables = [
            self.flavour.variable(np.asarray(value, np.float32), name=f"v{i}")
            for i, value in enumerate(values)
        ]

    def step(self, *gradients):
        """Takes a step with a gradient for each variable: numbers, `Rows` or None."""
        kind, feeds = _pattern(gradients)
        if self._eager:
            self._take(kind, *map(tf.constant, feeds))
            return
        if kind not in self._functions:
            self._functions[kind] = tf.function(lambda *feeds: self._take(kind, *feeds))
        self._functions[kind](*map(tf.constant, feeds))

    def _take(self, kind, *feeds):
        tensors = [self.flavour.tensor(variable) for variable in self.variables]
        loss = lambda: surrogate(tensors, _filled(kind, feeds))  # noqa: E731
        self.flavour.take_step(self, loss)

    def read(self, variables):
        return [np.asarray(variable) for variable in variables]

    def weights(self):
        return self.read(self.variables)

    def slots(self):
        """The variables of the update."""
        return self.flavour.slots(self.optimizer)

    def everything(self):
        """Weights and slots, in an order of the flavour's."""
        return [*self.weights(), *self.read(self.slots())]

    def scale(self):
        return float(self.read([self.optimizer.loss_scale])[0])

    def counters(self):
        counts = self.read([getattr(self.optimizer, name) for name in COUNTERS])
        return dict(zip(COUNTERS, map(int, counts), strict=True))

    def applied(self):
        return int(self.read([self.flavour.applied(self)])[0])

    def last_step_finite(self):
        return bool(self.read([self.optimizer.last_step_finite])[0])

    def events(self):
        return self.optimizer.journal.drain()

    def save(self, path):
        own = {f"v{i}": self.flavour.tensor(v) for i, v in enumerate(self.variables)}
        checkpoint = tf.train.Checkpoint(optimizer=self.optimizer, **own)
        return checkpoint.write(path)

    def restore(self, path):
        own = {f"v{i}": self.flavour.tensor(v) for i, v in enumerate(self.variables)}
        tf.train.Checkpoint(optimizer=self.optimizer, **own).read(path)


class GraphRun(Run):
    """Steps in a session of a graph."""

    def __init__(self, flavour, make, values, clip=None, eager=True):
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._ops = {}
            super().__init__(flavour, make, values, clip)
        self._session = v1.Session(graph=self._graph)
        self._initialized = set()

    def step(self, *gradients):
        kind, feeds = _pattern(gradients)
        with self._graph.as_default():
            if kind not in self._ops:
                places = [v1.placeholder(tf.float32, np.shape(feed)) for feed in feeds]
                loss = surrogate(self.variables, _filled(kind, places))
                self._ops[kind] = (self.flavour.train_op(self, loss), places)
            self._initialize()
            op, places = self._ops[kind]
            self._session.run(op, dict(zip(places, feeds, strict=True)))

    def _initialize(self):
        new = [v for v in v1.global_variables() if v not in self._initialized]
        self._session.run([variable.initializer for variable in new])
        self._initialized.update(new)

    def read(self, variables):
        with self._graph.as_default():
            self._initialize()
            return self._session.run(list(variables))

    def slots(self):
        # TensorFlow lists those of the default graph only.
        with self._graph.as_default():
            return super().slots()

    def events(self):
        with self._graph.as_default(), self._session.as_default():
            return super().events()

    def save(self, path):
        with self._graph.as_default():
            return v1.train.Saver().save(self._session, path)

    def restore(self, path):
        self._path = path
        with self._graph.as_default():
            self._initialize()
            v1.train.Saver().restore(self._session, path)


def _pattern(gradients):
    """What kind of gradient each variable gets, and the numbers to feed."""
    kind, feeds = [], []
    for gradient in gradients:
        if gradient is None:
            kind.append(None)
        elif isinstance(gradient, Rows):
            kind.append(gradient.indices)
            feeds.append(np.float32(gradient.values))
        else:
            kind.append("dense")
            feeds.append(np.float32(gradient))
    return tuple(kind), feeds


def _filled(kind, feeds):
    feeds, gradients = iter(feeds), []
    for each in kind:
        if each is None:
            gradients.append(None)
        elif each == "dense":
            gradients.append(next(feeds))
        else:
            gradients.append(Rows(tf.unstack(next(feeds), num=len(each)), each))
    return gradients


def steps(run, gradients):
    """Takes a step for each tuple of gradients; returns the run."""
    for each in gradients:
        run.step(*each)
    return run


def assert_bit_equal(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
