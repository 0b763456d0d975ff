# SPDX-License-Identifier: Apache-2.0
"""One traced step of an optimizer that any number of schedules goes through.

The bad values are fed, and a schedule begins with every variable as it was before the first step.
"""

import numpy as np
import tensorflow as tf
from flavours import FLAVOURS
from schedules import CEILING, FLOOR, ROWS, SHAPES, expected, feeds, manager

import npu_keras

v1 = tf.compat.v1
VALUES = [np.linspace(-1, 1, 8).reshape(4, 2), np.full((2, 3), 0.5), np.zeros(3)]


class Host:
    """A flavour with settings: what there is a trainer for.

    `runs` says how the update is executed: None, "fused" or "masked".
    """

    def __init__(self, flavour, mode="inf_nan", every=1, accumulate=None, runs=None, **settings):
        self.flavour, self.mode = next(f for f in FLAVOURS if f.name == flavour), mode
        self.manager = manager(every)
        self.accumulate, self.settings = accumulate, settings
        window = f", window of {accumulate}" if accumulate else ""
        self.runs = runs
        self.name = f"{flavour}, {mode}{window}{f', {runs}' if runs else ''}"

    def make(self, flavour):
        inner = flavour.adam(0.1)
        if self.accumulate:
            inner = flavour.optimizers.Adam(
                0.1, gradient_accumulation_steps=self.accumulate, use_ema=True
            )
        return flavour.scaled(inner, self.manager, overflow_mode=self.mode, **self.settings)

    def trainer(self, rank=0):
        graph = self.flavour.name == "v1 graph"
        return (GraphTrainer if graph else Trainer)(self, rank)


@tf.custom_gradient
def adding(value, bad):
    """The value; `bad` joins its gradient on the way back."""
    return tf.identity(value), lambda upstream: (upstream + bad, None)


def loss(variables, fed):
    table, matrix, bias = variables
    values = [tf.gather(table, tf.constant(ROWS)), matrix, bias]
    good, bad, factor = fed[:3], fed[3:6], fed[6]
    found = [tf.reduce_sum(adding(v, b) * g) for v, b, g in zip(values, bad, good, strict=True)]
    return tf.add_n(found) * factor


class Trainer:
    """Steps in a `tf.function`."""

    def __init__(self, host, rank=0):
        self.host, self.rank, self.traces = host, rank, 0
        self.run = host.flavour.run(host.make, VALUES, eager=False)
        if hasattr(self.run.optimizer, "build"):  # or the first call is traced twice
            self.run.optimizer.build(self.run.variables)
        self._prepare()
        npu_keras.set_fused_update_min_bytes(0 if host.runs == "fused" else None)
        # The first step overflows, and makes the slots; it cannot give them another value.
        self._take([*map(np.zeros, SHAPES.values()), *map(np.zeros, SHAPES.values()), np.nan])
        self._pristine = self.run.read(self._variables())
        npu_keras.set_fused_update_min_bytes()
        self.traces_at_first = self.traces  # the one that makes the slots, and the one after

    def _prepare(self):
        flavour, run = self.host.flavour, self.run
        self.statistic = tf.Variable([1.0, 1.0], trainable=False)
        tensors = [flavour.tensor(variable) for variable in run.variables]

        @tf.function(autograph=False, jit_compile=self.host.runs == "masked")
        def step(*fed):
            self.traces += 1
            self.statistic.assign(self.statistic * 0.9 + tf.reduce_sum(fed[3]) + fed[6])
            flavour.take_step(run, lambda: loss(tensors, fed))

        self._step = step
        run.optimizer.protect([self.statistic])

    def _take(self, fed):
        self._step(*(tf.constant(each, tf.float32) for each in fed))

    def check(self, schedule, size=1):
        """Trains with and without what is skipped; returns what both have left."""
        counters, events = expected(schedule, self.host.manager)
        if size == 1:  # no rank is blamed
            events = [(*event[:5], None, *event[6:]) for event in events]
        left = self.train(schedule)
        assert self.report(counters) == (counters, events), schedule
        clean = self.train(schedule, only_good=True)
        for ours, wanted in zip(left, clean, strict=True):
            np.testing.assert_array_equal(ours, wanted, strict=True, err_msg=str(schedule))
        return left

    def common(self, left):
        """Of what `check` returns what all ranks have alike: not the sums of an open window."""
        values = zip(self._variables(), left, strict=False)
        return [value for variable, value in values if "accumulator" not in variable.name]

    def _variables(self):
        run = self.run
        return [*run.variables, run.step_variable, *run.slots()]

    def _state(self):
        return dict(self.run.optimizer._scaling.state)

    def _start(self, schedule):
        """Everything as it was; the journal's ring needs no clearing."""
        values = {name: 0 for name in self._state() if not name.startswith("event_")}
        values |= {"loss_scale": schedule.scale, "good_steps": schedule.good_steps}
        pairs = list(zip(self._variables(), self._pristine, strict=True))
        pairs += [(self._state()[n], v) for n, v in (values | {"last_step_finite": True}).items()]
        self._assign(pairs)

    def _assign(self, pairs):
        for variable, value in pairs:
            variable.assign(tf.broadcast_to(tf.cast(value, variable.dtype), variable.shape))
        self.statistic.assign([1.0, 1.0])
        self.run.optimizer.protect([self.statistic])

    def train(self, schedule, *, only_good=False):
        """Takes the steps of a schedule; returns weights, slots and what else training leaves."""
        self._start(schedule)
        self.run.events()
        for number, bad in enumerate(schedule.bad()):
            if not (bad and only_good):
                self._take(feeds(schedule, number, self.rank))
        return [*self.run.read(self._variables()), *self._more()]

    def _more(self):
        return [self.statistic.numpy()]

    def report(self, names):
        """The counters, and the events in the form of `expected`."""
        state = self._state()
        values = self.run.read([state[name] for name in names])
        paths = self.run.optimizer.journal._paths()
        events = [
            (
                *(e.attempt, e.kind, e.scale_before, e.scale_after, e.bad_variables),
                *(e.rank, None if e.variable is None else paths.index(e.variable), e.forward),
            )
            for e in self.run.events()
        ]
        counters = {n: v.item() for n, v in zip(names, values, strict=True)}
        assert FLOOR <= counters["loss_scale"] <= CEILING
        return counters, events


class GraphTrainer(Trainer):
    """Steps in a session."""

    def _prepare(self):
        run = self.run
        with run._graph.as_default():
            shapes = [*SHAPES.values(), *SHAPES.values(), ()]
            self._places = [v1.placeholder(tf.float32, shape) for shape in shapes]
            self._op = self.host.flavour.train_op(run, loss(run.variables, self._places))
            self._writes = {}
            self._start_places = {}
        self.traces = 1
        run.read([])

    def _take(self, fed):
        self.run._session.run(self._op, dict(zip(self._places, fed, strict=True)))

    def _assign(self, pairs):
        if not self._writes:
            with self.run._graph.as_default():
                for variable, _ in pairs:
                    place = v1.placeholder(variable.dtype.base_dtype, variable.shape)
                    self._start_places[variable.name] = place
                    self._writes[variable.name] = v1.assign(variable, place).op
        fed = {
            self._start_places[variable.name]: np.broadcast_to(value, variable.shape)
            for variable, value in pairs
        }
        self.run._session.run(list(self._writes.values()), fed)

    def _more(self):
        return []
