# SPDX-License-Identifier: Apache-2.0
"""Reports on files that somebody has made to do harm: rubbish, bombs, and more than fits."""

import json
import tracemalloc

import pytest

from npu_keras import report
from npu_keras.event_log import read_events

KERNEL = "dense/kernel"


def line(attempt, variable=KERNEL, **fields):
    event = {"attempt": attempt, "kind": "skip", "scale_before": 8.0, "scale_after": 8.0}
    return json.dumps({**event, "variable": variable, **fields}).encode() + b"\n"


@pytest.fixture
def hostile(tmp_path):
    """Three events between lines that are none."""
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        file.write(line(1) + b"[" * 65_000 + b"\n" + b'{"a":' * 13_000 + b"\n")
        file.write(line(2, scale_before="8") + bytes(range(256)) + b"\n" + line(2))
        file.write(line(3, deep=[[[[]]]] * 1000))
        file.seek(64 << 20, 1)  # a line of zeros that takes no room on the disk
        file.write(b"\n" + line(4, variable="a" * 5000) + b'{"attempt": 5, "kind": "sk')
    return path


def test_a_report_on_a_hostile_file_takes_little_memory(hostile, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "_figures", lambda events: [])
    tracemalloc.start()
    status = report.main([str(hostile), "-o", str(tmp_path / "report.html")])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert status == 0
    assert peak < 4 << 20
    printed = capsys.readouterr().out
    assert "3 (100 %)" in printed  # of 3 attempts
    assert "lines of the file are damaged and left out" in printed
    assert (tmp_path / "report.html").stat().st_size < 20_000


def test_many_long_names_do_not_fill_memory(tmp_path):
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        for attempt in range(1, 301):
            file.write(line(attempt, f"{attempt}" + "b" * 60_000))
        file.write(line(301))
    tracemalloc.start()
    events, damaged = read_events(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [event.attempt for event in events] == [301]
    assert len(damaged) == 300
    assert peak < 2 << 20
