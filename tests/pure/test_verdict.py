# SPDX-License-Identifier: Apache-2.0
import pytest

from npu_keras.events import Event
from npu_keras.loss_scale import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from npu_keras.run_facts import RunFacts, Suspect
from npu_keras.verdict import (
    FORWARD,
    HEALTHY,
    SETTLING,
    STUCK,
    TOO_HIGH,
    UNKNOWN,
    judge,
)


class NumPy:
    import numpy

    where, minimum, maximum = numpy.where, numpy.minimum, numpy.maximum


def run(manager, steps, overflows, **details):
    """The events of so many steps; `overflows(step, scale)` says which overflow."""
    events, state = [], manager.initial_state()
    for step in range(1, steps + 1):
        bad = bool(overflows(step, float(state.loss_scale)))
        after = manager.next_state(state, not bad, NumPy)
        scales = float(state.loss_scale), float(after.loss_scale)
        if bad:
            kind = "back off" if scales[1] < scales[0] else "skip"
            counted = int(state.bad_steps) + 1
            rest = {"variable": "net/kernel", "infs": 1, **details}
            events.append(Event(step, kind, *scales, 1, bad_steps=counted, **rest))
        elif scales[1] > scales[0]:
            events.append(Event(step, "grow", *scales))
        state = after
    return events


def exponential(start=2.0**15, every=1000, decr=2, **bounds):
    return ExponentialUpdateLossScaleManager(start, every, decr, decr_ratio=0.5, **bounds)


def above(limit):
    return lambda step, scale: scale > limit


def after(start, limit):
    return lambda step, scale: scale > (2.0**14 if step < start else limit)


TABLE = {
    "no events": ([], UNKNOWN, "There is no event"),
    "only growths": (run(exponential(), 3500, above(2**30)), HEALTHY, "grew to 2**18"),
    "one overflow": (run(FixedLossScaleManager(8), 1, above(0)), HEALTHY, "1 of the last 1 step ("),
    "usual": (run(exponential(), 9000, above(2**15)), HEALTHY, "2 of the last 1,000 steps (0.2 %)"),
    "coming down": (
        run(exponential(2.0**32), 20, above(2**16)),
        SETTLING,
        "came down from 2**32 to 2**22 in 20 skipped steps, up to step 20, where the record ends.",
    ),
    "has come down, then good": (
        run(exponential(2.0**20, every=100), 500, above(2**16)),
        HEALTHY,
        "8 of the last 408 steps (2 %) were skipped",
    ),
    "grows too often": (
        run(exponential(every=10), 900, above(2**15)),
        TOO_HIGH,
        "150 of the last 900 steps (16.7 %) were skipped: the scale grows back",
    ),
    "fixed and too high": (
        run(FixedLossScaleManager(2**20), 40, above(2**16)),
        TOO_HIGH,
        "40 of the last 40 steps (100 %) were skipped: the scale does not move.",
    ),
    "fixed, now and then": (
        run(FixedLossScaleManager(1024), 900, lambda step, _: step % 300 == 0),
        HEALTHY,
        "3 of the last 900 steps",
    ),
    "gradients grow": (
        run(exponential(every=100), 460, after(450, 1.0)),
        TOO_HIGH,
        "The last 11 steps in a row overflowed, and the scale fell from 2**14 to 512",
    ),
    "at the default floor": (
        run(exponential(4.0), 60, above(0.5)),
        STUCK,
        "The scale is 1 and does not fall any further; 56 overflows since step 5",
    ),
    "at a floor of one's own": (
        run(exponential(2.0**12, min_loss_scale=256.0), 40, above(1)),
        STUCK,
        "The scale is 256 and",
    ),
    "at the floor, now and then": (
        run(exponential(1.0), 900, lambda step, _: step % 100 == 0),
        HEALTHY,
        "9 of the last 900 steps (1 %) were skipped",
    ),
    "loss not finite": (
        run(FixedLossScaleManager(8), 30, lambda step, _: step > 10, forward=True),
        FORWARD,
        "In 20 of the last 20 skipped steps the loss itself was infinite or NaN, first in step 11",
    ),
    "loss not finite once, long ago": (
        [
            Event(5, "skip", 8.0, 8.0, forward=True),
            Event(2000, "grow", 8.0, 16.0),
            Event(4000, "grow", 16.0, 32.0),
        ],
        HEALTHY,
        "No step was skipped after step 5; the scale is 32.",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_states(case):
    events, state, text = TABLE[case]
    verdict = judge(events)
    assert verdict.state == state, verdict
    assert text in verdict.reason
    assert verdict.advice


def test_the_number_of_steps_tells_settling_from_settled():
    events = run(exponential(2.0**20), 8, above(2**16))
    assert [judge(events, attempts).state for attempts in (8, 57, 58)] == [
        SETTLING,
        SETTLING,
        HEALTHY,
    ]
    assert "No step was skipped after step 8" in judge(events, 58).reason
    assert judge([], 70).reason.startswith("In 70 steps no gradient overflowed")


def test_a_known_floor_replaces_the_guess():
    events = run(FixedLossScaleManager(64), 30, above(1))
    assert judge(events).state == TOO_HIGH
    assert judge(events, floor=64.0).state == STUCK
    low = run(FixedLossScaleManager(1), 30, above(0))
    assert judge(low).state == STUCK
    assert judge(low, floor=0.25).state == TOO_HIGH


def test_a_bad_end_outweighs_an_overflowing_past():
    early = run(FixedLossScaleManager(8), 30, above(0))
    late = [Event(n, "skip", 8.0, 8.0, forward=True) for n in (31, 32, 33)]
    assert judge(early + late).state == FORWARD
    assert judge(early + late[:2]).state == TOO_HIGH


ADVICE = {
    "usual": ["Nothing."],
    "coming down": ["start at 2**22"],
    "grows too often": ["raise incr_every_n_steps", "max_loss_scale=2**15,", "net/kernel"],
    "fixed and too high": ["ExponentialUpdateLossScaleManager in the place", "2**19 or less"],
    "gradients grow": ["Lower the learning", "net/kernel overflowed alone in 100 %"],
    "at the default floor": ["net/kernel", "min_loss_scale"],
    "loss not finite": ["data of step 11", "enable_check_numerics"],
    "loss not finite once, long ago": ["In 1 skipped step, last in step 5"],
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case):
    text = "\n".join(judge(TABLE[case][0]).advice)
    assert [part for part in ADVICE[case] if part not in text] == []
    assert "NaN but no infinity" not in text


def test_nan_without_infinity_is_pointed_out():
    events = run(exponential(4.0), 60, above(0.5), infs=0, nans=7)
    assert "NaN but no infinity" in judge(events).advice[0]


def test_no_variable_is_accused_without_a_majority_or_of_what_began_elsewhere():
    events = run(exponential(every=10), 900, above(2**15))
    spread = [e._replace(variable=f"layer{e.attempt % 3}/kernel") for e in events]
    assert "kernel" not in "".join(judge(spread).advice)
    several = [e._replace(bad_variables=9) for e in events]
    text = "".join(judge(several).advice)
    assert "kernel" not in text
    assert "several variables overflowed" in text


def test_numbers():
    events = [
        Event(1, "back off", 2.0**16, 2.0**15, 2, "a", 3, 1, rank=1),
        Event(2, "skip", 2.0**15, 2.0**15, 1, "b", 1, 0, True, rank=0),
        Event(9, "grow", 2.0**15, 2.0**16),
        Event(10, "back off", 2.0**16, 2.0**15, 1, "a", 1, 0, rank=1),
    ]
    assert dict(RunFacts(events).rows()) == {
        "steps up to the last event": "10",
        "skipped": "3 (30 %)",
        "growths of the scale": "1",
        "back-offs of the scale": "2",
        "first loss scale": "2**16",
        "last loss scale": "2**15",
        "lowest and highest": "2**15 and 2**16",
        "last skipped step": "10",
        "infinite and NaN elements": "5 and 1",
        "skipped, loss not finite": "1",
        "overflows by rank": "2 on rank 1, 1 on rank 0",
    }
    assert RunFacts(events).suspects() == [Suspect("a", 2, 1, 1, 10), Suspect("b", 1, 1, 2, 2)]
    assert dict(RunFacts([], 50).rows())["steps tried"] == "50"
