# SPDX-License-Identifier: Apache-2.0
"""Random schedules of overflows, and what the loss scale has to make of them."""

import random
from typing import NamedTuple

import numpy as np

from npu_keras import ExponentialUpdateLossScaleManager
from npu_keras.loss_scale import ScaleState

FLOOR, CEILING, GROW_AFTER = 1.0, 64.0, 3
LARGEST = float(np.finfo(np.float32).max)
SHAPES = {"table": (3, 2), "matrix": (2, 3), "bias": (3,)}
"""Gradients that are fed; the first one is of rows, some of them twice."""
ROWS = (3, 1, 3)
_INFINITE = (float("inf"), float("-inf"), float("nan"))


def manager(every=1):
    return ExponentialUpdateLossScaleManager(
        8.0, GROW_AFTER, every, 2.0, 0.5, min_loss_scale=FLOOR, max_loss_scale=CEILING
    )


class Fault(NamedTuple):
    """What goes wrong: in the loss itself, or in the gradient of one variable."""

    rank: int
    place: str
    value: float
    everywhere: bool


class Schedule(NamedTuple):
    """Where the loss scale starts, and the faults of each step (most have none)."""

    seed: int
    scale: float
    good_steps: int
    faults: tuple[tuple[Fault, ...], ...]

    def bad(self):
        return [bool(faults) for faults in self.faults]


def schedule(seed, *, saturation=False, size=1, steps=9):
    """The schedule of a seed: every one begins at another point of the scale's life."""
    rng = random.Random(seed)
    scale = rng.choice([FLOOR, 8.0, CEILING])
    good = rng.randrange(GROW_AFTER)
    rate = rng.choice([0.15, 0.4, 0.7])
    bad = [rng.random() < rate for _ in range(steps)]
    # The first step, or the one at which the scale would have grown, in half of them.
    if rng.random() < 0.5:
        bad[rng.choice([0, GROW_AFTER - 1 - good])] = True
    faults = [_faults(rng, saturation, size) if each else () for each in bad]
    return Schedule(seed, scale, good, tuple(faults))


def _faults(rng, saturation, size):
    ranks = rng.sample(range(size), rng.randint(1, size))
    found = []
    for rank in ranks:
        places = rng.sample(["loss", *SHAPES], rng.choice([1, 1, 2]))
        for place in places:
            finite = saturation and place != "loss" and rng.random() < 0.5
            value = rng.choice((LARGEST, -LARGEST) if finite else _INFINITE)
            found.append(Fault(rank, place, value, rng.random() < 0.3))
    return tuple(found)


def feeds(schedule, number, rank=0):
    """What a rank feeds in a step: good gradients, what is added to them, and the loss' factor."""
    rng = np.random.default_rng([schedule.seed, number, rank])
    good = [rng.standard_normal(shape).astype("float32") for shape in SHAPES.values()]
    added = {name: np.zeros(shape, "float32") for name, shape in SHAPES.items()}
    factor = np.float32(1)
    for fault in schedule.faults[number]:
        if fault.rank == rank and fault.place == "loss":
            factor = np.float32(fault.value)
        elif fault.rank == rank:
            array = added[fault.place].reshape(-1)
            where = slice(None) if fault.everywhere else rng.integers(array.size)
            array[where] = fault.value
    return [*good, *added.values(), factor]


def expected(schedule, scale_manager):
    """The counters after the schedule, and its events: attempt, kind, scales, blame."""
    state = ScaleState(np.float32(schedule.scale), np.int64(schedule.good_steps), np.int64(0))
    events, growths, backoffs = [], 0, 0
    for attempt, faults in enumerate(schedule.faults, start=1):
        after = scale_manager.next_state(state, not faults, np)
        grew, fell = after.loss_scale > state.loss_scale, after.loss_scale < state.loss_scale
        growths, backoffs = growths + int(grew), backoffs + int(fell)
        if faults or grew:
            kind = "back off" if fell else "skip" if faults else "grow"
            scales = (float(state.loss_scale), float(after.loss_scale))
            events.append((attempt, kind, *scales, *_blame(faults)))
        state = after
    counters = {
        "loss_scale": float(state.loss_scale),
        "good_steps": int(state.good_steps),
        "bad_steps": int(state.bad_steps),
        "attempted_steps": len(schedule.faults),
        "skipped_steps": sum(schedule.bad()),
        "scale_growths": growths,
        "scale_backoffs": backoffs,
    }
    return counters, events


def _blame(faults):
    """How many variables overflowed, the first rank at fault and its first variable, the loss."""
    if not faults:
        return 0, None, None, False
    everything = range(len(SHAPES))
    by_rank = {}
    for fault in faults:
        forward = fault.place == "loss"
        bad = everything if forward else [list(SHAPES).index(fault.place)]
        by_rank.setdefault(fault.rank, set()).update(bad)
    rank = min(by_rank)
    forward = any(fault.place == "loss" for fault in faults)
    return len(set().union(*by_rank.values())), rank, min(by_rank[rank]), forward
