# SPDX-License-Identifier: Apache-2.0
"""The sentences that LossScaleLogger prints, and their numbers."""

import json
import logging

import keras
import numpy as np
import pytest
from logged import batches, fit, scaled_optimizer, small_model

import npu_keras
from npu_keras.callbacks import LossScaleLogger
from npu_keras.callbacks.wording import settling_steps
from npu_keras.event_log import read_events
from npu_keras.words import scale_text, steps_text


def printed(capsys, model, data, epochs=1, **kwargs):
    fit(model, data, LossScaleLogger(), epochs=epochs, **kwargs)
    return capsys.readouterr().out


def test_the_line_of_an_epoch_in_which_the_scale_settles(capsys):
    assert printed(capsys, small_model(), batches(8, bad=[1, 2, 5])).splitlines() == [
        "Epoch 1: loss scale 2**15 -> 2**12 (fell 3 times); 3 of 8 steps skipped (1-2, 5), as "
        "expected while the scale settles; first overflow in net/dense/kernel."
    ]


def test_the_lines_of_later_epochs_have_a_running_total_and_name_growths(capsys):
    model = small_model(scaled_optimizer(every=3, bad=2))
    lines = printed(capsys, model, batches(4, bad=[1]), epochs=2).splitlines()
    assert lines == [
        "Epoch 1: loss scale 2**15 -> 2**16 (grew once); 1 of 4 steps skipped (1), as expected "
        "while the scale settles; first overflow in net/dense/kernel.",
        "Epoch 2: loss scale 2**16 -> 2**17 (grew once); 1 of 4 steps skipped (5); first overflow "
        "in net/dense/kernel; 2 of 8 skipped in total.",
    ]


def test_of_a_hundred_steps_three_are_skipped(capsys, caplog):
    """How many, which, how many in a row, and nothing that looks like an error."""
    logger, model = LossScaleLogger(), small_model(scaled_optimizer(every=20))
    fit(model, batches(100, bad=[31, 32, 70]), logger)
    assert capsys.readouterr().out.splitlines() == [
        "Epoch 1: loss scale still 2**15 (grew 3 times, fell 3 times); 3 of 100 steps skipped "
        "(31-32, 70); first overflow in net/dense/kernel."
    ]
    skipped = [record for record in logger.to_records() if record["kind"] == "back off"]
    assert [(r["attempt"], r["scale_before"], r["scale_after"]) for r in skipped] == [
        (31, 2.0**16, 2.0**15),
        (32, 2.0**15, 2.0**14),
        (70, 2.0**15, 2.0**14),
    ]
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_bad_step_that_does_not_lower_the_scale_says_how_many_do(capsys):
    line = printed(capsys, small_model(scaled_optimizer(bad=2)), batches(3, bad=[2]))
    assert "loss scale still 2**15; 1 of 3 steps skipped (2)" in line
    assert "1 of 2 overflows towards the next decrease" in line


def test_an_epoch_without_events_says_nothing(capsys):
    assert printed(capsys, small_model(), batches(3)) == ""


def test_verbose_0_says_nothing(capsys):
    fit(small_model(), batches(3, bad=[1]), LossScaleLogger(verbose=0))
    assert capsys.readouterr().out == ""


def test_lines_stand_between_the_progress_bars(capsys):
    out = printed(capsys, small_model(), batches(4, bad=[1]), epochs=2, verbose=2)
    kinds = [line.split(" ")[0] + line.split(" ")[1] for line in out.splitlines()]
    assert kinds == ["Epoch1/2", "4/4-", "Epoch1:", "Epoch2/2", "4/4-", "Epoch2:"]


def test_without_interactive_logging_lines_go_to_the_logger(capsys, caplog):
    caplog.set_level(logging.INFO, "npu_keras")
    keras.config.disable_interactive_logging()
    try:
        fit(small_model(), batches(3, bad=[1]), LossScaleLogger())
    finally:
        keras.config.enable_interactive_logging()
    assert capsys.readouterr().out == ""
    assert [r.levelname for r in caplog.records if r.name == "npu_keras"] == ["INFO"]


def test_a_scale_stuck_at_its_floor_is_a_warning_that_says_what_to_do(capsys, caplog):
    model = small_model(scaled_optimizer(scale=2**11, min_loss_scale=2**10))
    fit(model, batches(4, bad=[1, 2, 3]), LossScaleLogger())
    (record,) = (r for r in caplog.records if r.name == "npu_keras")
    assert record.levelname == "WARNING"
    assert "the scale is at its floor of 2**10: lower `min_loss_scale`" in record.getMessage()
    assert capsys.readouterr().out == ""


def test_a_loss_that_is_not_finite_is_told_from_an_overflow(capsys, caplog):
    data = batches(8, bad=[2], value=np.nan)
    line = printed(capsys, small_model(), data)
    assert "there the loss itself was not finite, which no loss scale can cure" in line
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_too_high_first_scale_under_float16_is_announced_once(capsys):
    keras.config.set_dtype_policy("mixed_float16")
    model = small_model(scaled_optimizer(scale=2**32, bad=2))
    x, y = batches(40)
    assert printed(capsys, model, (x, y), epochs=2).splitlines()[0] == (
        "Loss scale starts at 2**32: in float16 expect about 32 skipped steps while it settles "
        "(from 2**16 there would be few)."
    )
    assert "Loss scale starts" not in printed(capsys, model, (x, y))


@pytest.mark.parametrize(
    "scale, every, ratio, steps",
    [(2**32, 2, 0.5, 32), (2**32, 1, 0.5, 16), (2**20, 1, 0.8, 13), (2**16, 2, 0.5, 0)],
)
def test_the_estimate_of_skipped_steps(scale, every, ratio, steps):
    manager = npu_keras.ExponentialUpdateLossScaleManager(scale, 20, every, decr_ratio=ratio)
    assert settling_steps(manager, float(scale)) == steps
    assert settling_steps(npu_keras.FixedLossScaleManager(scale), float(scale)) == 0


@pytest.mark.parametrize(
    "scale, text",
    [
        (2.0**32, "2**32"),
        (512.0, "512"),
        (1.0, "1"),
        (2.0**-10, "2**-10"),
        (3355443.25, "3.355e+06"),
    ],
)
def test_how_a_scale_is_written(scale, text):
    assert scale_text(scale) == text


def test_how_steps_are_written():
    assert steps_text([3]) == "3"
    assert steps_text([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert steps_text([1, 3, 5, 7, 9, 10]) == "1, 3, 5, 7 and 2 more"


def test_reading_a_file_counts_damaged_lines_and_lets_a_resumed_run_replace(tmp_path):
    path = tmp_path / "events.jsonl"

    def line(attempt, after):
        event = npu_keras.Event(attempt, "back off", 8.0, after)
        return json.dumps(event._asdict()) + "\n"

    text = line(2, 4.0) + line(5, 2.0) + "not json\n" + line(9, 1.0) + line(4, 3.0)
    path.write_text(text + '{"attempt": 1}\n{"attempt": 10, "kind": "bac')
    events, damaged = read_events(path)
    assert [(event.attempt, event.scale_after) for event in events] == [(2, 4.0), (4, 3.0)]
    assert damaged == [3, 6, 7]
