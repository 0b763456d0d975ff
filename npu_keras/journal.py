# SPDX-License-Identifier: Apache-2.0
"""What happened in each step, recorded inside the graph and read afterwards.

Nothing is inferred: an event is written by the step that skipped, grew or backed off, and only
then, so reading is free of device synchronisation until somebody drains.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from npu_keras.events import BACK_OFF as BACK_OFF
from npu_keras.events import GROW as GROW
from npu_keras.events import KINDS as KINDS
from npu_keras.events import SKIP as SKIP
from npu_keras.events import Event as Event
from npu_keras.events import Snapshot as Snapshot
from npu_keras.ordering import branch, in_order
from npu_keras.state import RING_COLUMNS, RING_ROWS, StepState, native


class Blame(NamedTuple):
    """Who and what overflowed in a step: int64 scalars in the order in which they are stored."""

    bad_variables: tf.Tensor
    first_bad: tf.Tensor
    infs: tf.Tensor
    nans: tf.Tensor
    forward: tf.Tensor
    rank: tf.Tensor


def record(
    state: StepState,
    finite: tf.Tensor,
    before: tf.Tensor,
    after: tf.Tensor,
    bad_steps: tf.Tensor,
    blame: Blame,
) -> None:
    """Counts the step and writes an event if something happened (in the graph).

    Args:
        state: the optimizer's variables; `attempted_steps` is advanced here.
        finite: bool scalar, whether the update was applied.
        before: float32 scalar, the loss scale of this step.
        after: float32 scalar, the loss scale of the next step.
        bad_steps: int64 scalar, overflows counted towards the next back-off, this one included.
        blame: who and what overflowed; all zero, or -1 for nobody, in a finite step.
    """
    grew, lowered = after > before, after < before

    def count() -> None:
        state.attempted_steps.assign_add(tf.ones((), tf.int64))
        state.last_step_finite.assign(finite)

    def write() -> None:
        kind = tf.where(finite, 1, tf.where(lowered, 2, 0))
        _count(state, finite, grew, lowered)
        row = [tf.convert_to_tensor(state.attempted_steps), kind, *blame, bad_steps]
        _write_row(state, row, [before, after])

    happened = tf.logical_or(tf.logical_not(finite), grew)
    in_order(
        count,
        lambda: tf.cond(happened, branch(write, True), lambda: tf.constant(False)),
    )


def _count(state: StepState, finite: tf.Tensor, grew: tf.Tensor, lowered: tf.Tensor) -> None:
    state.skipped_steps.assign_add(tf.cast(tf.logical_not(finite), tf.int64))
    state.scale_growths.assign_add(tf.cast(grew, tf.int64))
    state.scale_backoffs.assign_add(tf.cast(lowered, tf.int64))


def _write_row(state: StepState, integers: Sequence[Any], scales: Sequence[Any]) -> None:
    # A whole-ring assignment, because scatter updates do not exist for mirrored variables.
    count = tf.convert_to_tensor(state.event_count)
    here = tf.equal(tf.range(RING_ROWS, dtype=tf.int64)[:, None], count % RING_ROWS)
    values = [tf.cast(value, tf.int64) for value in integers]
    values += [tf.zeros((), tf.int64)] * (RING_COLUMNS - len(values))
    old_integers = tf.convert_to_tensor(state.event_integers)
    old_scales = tf.convert_to_tensor(state.event_scales)
    state.event_integers.assign(tf.where(here, tf.stack(values)[None], old_integers))
    state.event_scales.assign(tf.where(here, tf.stack(scales)[None], old_scales))
    state.event_count.assign(count + 1)


class Journal:
    """Reads the events and counters of one optimizer.

    Args:
        state: the optimizer's variables.
        paths: gives the paths of the trained variables, in order.
    """

    def __init__(self, state: StepState, paths: Callable[[], Sequence[str]]) -> None:
        self._state = state
        self._paths = paths
        self._reader = JournalReader(self, since=0)

    def drain(self) -> list[Event]:
        """Returns the events since the last call, oldest first.

        The optimizer keeps the newest 512; `lost` counts what nobody drained in time.
        Callbacks use readers of their own, so draining here takes nothing from them.
        """
        return self._reader.drain()

    @property
    def lost(self) -> int:
        """How many events were overwritten before `drain` saw them."""
        return self._reader.lost

    def reader(self) -> "JournalReader":
        """Returns an independent reader that starts with the next event."""
        return JournalReader(self, since=self.event_count)

    @property
    def event_count(self) -> int:
        """How many events were ever recorded."""
        return int(read(self._state.event_count))

    def snapshot(self) -> Snapshot:
        """Returns the cumulative counters as Python numbers."""
        values = [read(getattr(self._state, name)).item() for name in Snapshot._fields]
        return Snapshot(*values)

    def overflows_by_variable(self) -> dict[str, int]:
        """Returns, for each variable path, in how many skipped steps its gradient overflowed."""
        counts = self._state.overflows_by_variable
        if counts is None:
            return {}
        return dict(zip(self._paths(), read(counts).tolist(), strict=True))

    def events(self, first: int, last: int) -> list[Event]:
        """Returns the events numbered `first` to `last` (exclusive) that are still kept."""
        count = self.event_count if last > first else 0
        first, last = max(first, count - RING_ROWS, 0), min(last, count)
        if last <= first:
            return []
        integers, scales = read(self._state.event_integers), read(self._state.event_scales)
        paths = self._paths()
        rows = [number % RING_ROWS for number in range(first, last)]
        return [_event(integers[row], scales[row], paths) for row in rows]


class JournalReader:
    """A place in the journal; `drain` moves it on.

    Args:
        journal: the journal to read.
        since: the number of the first event to return.
    """

    def __init__(self, journal: Journal, since: int) -> None:
        self._journal = journal
        self._next = since
        self.lost = 0

    def drain(self) -> list[Event]:
        """Returns the events since the last call, oldest first; counts overwritten ones."""
        count = self._journal.event_count
        if count < self._next:  # an older checkpoint was loaded
            self._next = count
        first = max(self._next, count - RING_ROWS)
        self.lost += first - self._next
        self._next = count
        return self._journal.events(first, count)


def read(variable: Any) -> np.ndarray:
    """Returns the value of any kind of variable, mirrored ones included.

    In a graph of `tf.compat.v1` a variable has a value in a session only: the default one.

    Args:
        variable: a Keras or TensorFlow variable.

    Raises:
        RuntimeError: in a graph without a default session.
    """
    variable = native(variable)
    if tf.executing_eagerly():
        return np.asarray(variable.numpy())
    session = tf.compat.v1.get_default_session()
    if session is None:
        raise RuntimeError(
            "In a graph the journal is read in a session: `with session.as_default(): "
            "optimizer.journal.drain()`; with a MonitoredSession in the `after_run` or `end` of a "
            "hook, whose `run_context.session` (or `session`) is such a one."
        )
    return np.asarray(session.run(variable))


def _event(integers: np.ndarray, scales: np.ndarray, paths: Sequence[str]) -> Event:
    attempt, kind, bad, first, infs, nans, forward, rank, bad_steps = integers[:9].tolist()
    return Event(
        attempt=attempt,
        kind=KINDS[kind],
        scale_before=float(scales[0]),
        scale_after=float(scales[1]),
        bad_variables=bad,
        variable=paths[first] if 0 <= first < len(paths) else None,
        infs=infs,
        nans=nans,
        forward=bool(forward),
        bad_steps=bad_steps,
        rank=rank if rank >= 0 else None,
    )
