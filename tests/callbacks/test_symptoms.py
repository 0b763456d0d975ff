# SPDX-License-Identifier: Apache-2.0
import pytest

from npu_keras import Event
from npu_keras.callbacks.symptoms import FLOOR, FORWARD, FORWARD_AGAIN, RATE, RUN, Limits, Watch


def limits(**given):
    none = {"consecutive_skips": None, "overflow_rate": None, "window": 10}
    return Limits(**(none | {"floor": None, "lower_after": 1} | given))


def skip(attempt, scale=8.0, **fields):
    fields = {"variable": "net/dense/kernel", "infs": 1, "bad_steps": 1} | fields
    return Event(attempt, "skip", scale, scale, 1, **fields)


def kinds(limits, events, attempts=0):
    """The kinds of the symptoms of each event."""
    watch = Watch(limits, attempts)
    return [[symptom.kind for symptom in watch.see(event)] for event in events]


def test_growths_are_no_symptoms():
    strict = limits(consecutive_skips=1, overflow_rate=0.0, window=1, floor=8.0)
    assert kinds(strict, [Event(1, "grow", 8.0, 16.0)]) == [[]]


def test_skips_in_a_row_may_be_as_many_as_the_limit():
    events = [skip(1), skip(2), skip(4), skip(5), skip(6), skip(7)]
    assert kinds(limits(consecutive_skips=3), events) == [[], [], [], [], [], [RUN]]
    assert kinds(limits(), events) == [[]] * 6


@pytest.mark.parametrize(
    "attempts, start, expected",
    [
        ([1, 3, 5, 7], 0, [False] * 4),  # before the window is full
        ([1, 3, 5, 11], 0, [False] * 4),  # step 1 has left it: 3 of 10
        ([2, 3, 5, 11], 0, [False, False, False, True]),  # 4 of 10
        ([102, 103, 105, 109], 100, [False] * 4),  # counted from the begin of the training
        ([102, 103, 105, 111], 100, [False, False, False, True]),
    ],
)
def test_the_rate_is_that_of_a_full_window(attempts, start, expected):
    found = kinds(limits(overflow_rate=0.3), [skip(each) for each in attempts], start)
    assert [each == [RATE] for each in found] == expected


def test_the_floor_is_where_overflows_lower_nothing():
    at_floor = limits(floor=4.0, lower_after=2)
    events = [skip(1, 8.0), skip(2, 4.0, bad_steps=1), skip(3, 4.0, bad_steps=2)]
    assert kinds(at_floor, events) == [[], [], [FLOOR]]
    assert kinds(at_floor, [skip(1, 4.0, bad_steps=2, forward=True)]) == [[FORWARD]]


def test_one_loss_that_is_not_finite_is_an_accident_and_three_in_a_row_are_not():
    bad = {"forward": True, "nans": 3}
    events = [skip(1, **bad), skip(3, **bad), skip(4, **bad), skip(5, **bad)]
    assert kinds(limits(), events) == [[FORWARD], [FORWARD], [FORWARD], [FORWARD_AGAIN]]
    mixed = [skip(1, **bad), skip(2), skip(3, **bad)]
    assert kinds(limits(), mixed) == [[FORWARD], [], [FORWARD]]


def test_the_message_names_step_scale_variables_ranks_and_what_to_try():
    watch = Watch(limits(consecutive_skips=2), 0)
    watch.see(skip(56, 2.0**12, rank=1))
    watch.see(skip(57, 2.0**11, variable="net/out/kernel", rank=0))
    (symptom,) = watch.see(skip(58, 2.0**10, rank=1))
    assert symptom.text.startswith(
        "Step 58, loss scale 2**10: 3 steps in a row were skipped, more than 2. First to overflow: "
        "net/dense/kernel, net/out/kernel. Ranks that overflowed: 0, 1. What to try: "
    )
    assert "clip the gradients" in symptom.text


def test_the_messages_of_floor_rate_and_forward():
    (floor,) = Watch(limits(floor=1.0), 0).see(skip(9, 1.0))
    assert "the scale is stuck at its floor of 1. First" in floor.text
    assert "min_loss_scale" in floor.text
    (rate,) = Watch(limits(overflow_rate=0.05, window=10), 0).see(skip(40))
    assert "1 of the last 10 steps were skipped, more than 5.0%." in rate.text
    (forward,) = Watch(limits(), 0).see(skip(7, forward=True))
    assert "the loss itself was not finite, which no loss scale can cure" in forward.text
    assert "data of step 7" in forward.text


def test_a_scale_that_does_not_move_is_advised_to():
    watch = Watch(limits(consecutive_skips=1), 0)
    events = [Event(attempt, "skip", 8.0, 8.0, 1, "kernel", infs=1) for attempt in (1, 2)]
    ((kind, text),) = [symptom for event in events for symptom in watch.see(event)]
    assert kind == RUN
    assert "ExponentialUpdateLossScaleManager in the place of FixedLossScaleManager" in text
