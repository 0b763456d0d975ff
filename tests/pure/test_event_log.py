# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import resource
import signal
import tracemalloc

import pytest

from npu_keras import event_log
from npu_keras.event_log import EventLog, read_events
from npu_keras.events import Event
from npu_keras.line_reader import bounded_lines

GOOD = {"attempt": 3, "kind": "skip", "scale_before": 8.0, "scale_after": 8}
NOT_EVENTS = [
    {"attempt": 0},
    {"attempt": True},
    {"attempt": 1.5},
    {"attempt": 2**63},
    {"attempt": "1"},
    {"kind": "fly"},
    {"kind": ["skip"]},
    {"scale_before": -1.0},
    {"scale_after": float("nan")},
    {"scale_after": 1e300},
    {"scale_after": 1e-300},
    {"scale_after": None},
    {"scale_after": 10**400},
    {"variable": 3},
    {"variable": {"a": 1}},
    {"bad_variables": "many"},
    {"bad_variables": -1},
    {"infs": None},
    {"forward": 1},
    {"rank": [0]},
]


def read(tmp_path, content):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_events(path)


def test_an_event_comes_back_as_it_was_and_unknown_fields_are_passed_over(tmp_path):
    event = Event(7, "back off", 4.0, 2.0, 3, "dense/kernel", 5, 6, True, 2, 1)
    line = json.dumps({**event._asdict(), "epoch": 1, "wall_time": 2.5, "new": []})
    assert read(tmp_path, line) == ([event], [])


def test_scales_may_be_integers_zero_or_infinite(tmp_path):
    line = json.dumps(GOOD | {"scale_before": float("inf"), "scale_after": 0})
    (event,), _ = read(tmp_path, line)
    assert (event.scale_before, event.scale_after) == (float("inf"), 0.0)
    assert type(event.scale_after) is float


@pytest.mark.parametrize("wrong", NOT_EVENTS, ids=str)
def test_a_value_that_no_event_has_makes_a_line_damaged(tmp_path, wrong):
    text = json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"attempt": 9} | wrong)
    events, damaged = read(tmp_path, text)
    assert ([event.attempt for event in events], damaged) == ([3], [2])


@pytest.mark.parametrize(
    "line", ["[]", "3", "null", '"x"', "[" * 60_000, "1" * 5000, '{"a":', "{}"]
)
def test_a_line_that_is_no_object_is_damaged(tmp_path, line):
    assert read(tmp_path, f"\n{line}\n  \n") == ([], [2])


def test_bytes_that_are_no_text_damage_only_their_line(tmp_path):
    good = json.dumps(GOOD).encode()
    events, damaged = read(tmp_path, b"\xff\xfe\x00\n" + good + b"\r\n\x80")
    assert ([event.attempt for event in events], damaged) == ([3], [1, 3])


def test_a_line_without_end_does_not_fill_memory(tmp_path):
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        file.truncate(50_000_000)  # zeros, no line feed
        file.seek(0, 2)
        file.write(b"\n" + json.dumps(GOOD).encode() + b"\n")
    tracemalloc.start()
    events, damaged = read_events(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ([event.attempt for event in events], damaged) == ([3], [1])
    assert peak < 2_000_000


def test_a_file_of_damaged_lines_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "MOST_DAMAGED", 5)
    events, damaged = read(tmp_path, "x\n" * 9 + json.dumps(GOOD))
    assert (events, damaged) == ([], [1, 2, 3, 4, 5])


def test_lines_are_whole_or_none(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"ab\n\nabc\nabcd\nabcdefgh\nabcd")
    assert list(bounded_lines(path, limit=4)) == ["ab", "", "abc", None, None, None]
    assert list(bounded_lines(path, limit=5)) == ["ab", "", "abc", "abcd", None, "abcd"]


def test_a_run_after_a_crash_begins_a_line_of_its_own(tmp_path):
    path, event = tmp_path / "events.jsonl", Event(**GOOD)
    for left, damaged in (('{"attempt": 1, "ki', [1]), ("", []), ("{}\n", [1])):
        path.write_text(left)
        log = EventLog(path)
        log.open()
        log.append([event], epoch=0)
        assert read_events(path) == ([event], damaged)


@contextlib.contextmanager
def full_disk(size=1000):
    """No file can grow: only while the log is written, for pytest writes to one, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_one_warning_and_what_was_written_can_be_read(tmp_path, caplog):
    log = EventLog(tmp_path / "events.jsonl")
    log.open()
    with full_disk():
        for attempt in range(1, 20):
            log.append([Event(attempt, "skip", 8.0, 4.0, variable="x" * 50)], epoch=0)
    (warning,) = caplog.messages
    assert "(File too large). Training goes on without." in warning
    events, damaged = read_events(log.path)
    assert [event.attempt for event in events] == list(range(1, len(events) + 1))
    assert 2 <= len(events) <= 5
    assert damaged == [len(events) + 1]
