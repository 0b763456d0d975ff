# SPDX-License-Identifier: Apache-2.0
"""Benchmarks take turns, and their table says what was measured."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from benchmarks import table
from benchmarks.contestants import Field, contestant
from benchmarks.harness import Row, Timed, in_turns
from benchmarks.rendezvous import rendezvous


def test_ways_take_turns_forward_and_backward():
    order = []
    ways = {name: lambda name=name: order.append(name) for name in "ABC"}
    row = in_turns("three", ways, turns=2, warm_up=1, target={"B": 2.0})
    assert "".join(order) == "CBA" + "ABC" + "CBA"
    assert [(way.name, len(way.seconds)) for way in row.timed] == [("A", 2), ("B", 2), ("C", 2)]


def test_ratios_are_taken_turn_by_turn():
    # The machine was ten times slower in the second turn; B took half as long all the same.
    row = Row("row", [Timed("A", [1.0, 10.0, 1.0]), Timed("B", [0.5, 5.0, 0.5])], {"B": 0.4})
    assert row.ratio(row.timed[1]) == 0.5
    text = table.markdown([row], {"cores": 2}).splitlines()
    assert text[0] == "Measured on cores 2."
    assert text[-2] == "| row | A | 1000 ms (1000 to 5500) | 1 |  |  |"
    assert text[-1] == "| row | B | 500 ms (500 to 2750) | 0.500 | <= 0.4 | no |"


def test_a_row_can_be_read_against_another_way():
    row = Row("row", [Timed("A", [1.0]), Timed("B", [2.0]), Timed("C", [3.0])], {}, ["D: not here"])
    (against,) = row.against("B", {"C": 1.4})
    assert [way.name for way in against.timed] == ["B", "C"]
    assert against.ratio(against.timed[1]) == 1.5
    assert not list(row.against("D", {"C": 1.0}))
    (added,) = row.added("A", "C", {"B": 0.25})
    assert added.ratio(added.timed[1]) == 0.5
    (slower,) = row.quotients(("C", "A"), ("B", "A"), 0.65)
    assert slower.ratio(slower.timed[1]) == 2 / 3
    assert table.row_lines(slower)[1] == (
        "| row: slowdown | B / A | 2 times (2 to 2) | 0.667 | <= 0.65 | no |"
    )
    assert table.row_lines(row)[3] == "| row | D: not here | not measured |  |  |  |"


def test_ways_may_report_their_own_figures():
    row = in_turns("own", {"A": lambda: 2.0, "B": lambda: 3.0}, turns=1, reported=True)
    assert [way.seconds for way in row.timed] == [[2.0], [3.0]]


def test_a_rendezvous_keeps_what_it_is_given():
    with rendezvous() as port:
        address = f"http://127.0.0.1:{port}/scope/key"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(address, timeout=10)
        put = urllib.request.Request(address, b"value", method="PUT")
        urllib.request.urlopen(put, timeout=10).close()
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.read() == b"value"


def test_a_contestant_that_does_not_start_says_so_at_once(capfd):
    command = [sys.executable, "-c", "raise SystemExit('cannot')"]
    with (
        pytest.raises(RuntimeError, match="its ranks did not start"),
        contestant([command], [{}], 1),
    ):
        pass
    assert "cannot" in capfd.readouterr().err


WORKER = """
import sys
from benchmarks.workers.protocol import serve
def make():
    print("made", flush=True)
    return lambda steps: 2.0 * steps
serve({"double": make, "never": lambda: 1 / 0}, 0)
open(sys.argv[1], "a").write("by itself ")
"""


def test_a_contestant_starts_once_and_makes_a_way_when_it_is_first_wanted(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    starts, ended = [], tmp_path / "ended"

    def start():
        starts.append("start")
        return contestant([[sys.executable, "-c", WORKER, str(ended)]] * 2, [{}] * 2, 2)

    with Field() as field:
        double = field.contestant("two", start).way("double", 3)
        assert double() == double() == 2.0
        assert field.contestant("two", start).most("double", 5) == 10.0
        assert 1e6 < field.contestant("two", start).peak_memory() < 1e9
    assert starts == ["start"]
    assert ended.read_text() == "by itself by itself "


def test_every_time_is_kept():
    row = Row("row", [Timed("A", [1.0]), Timed("B", [3.0])], {})
    stored = json.loads(table.as_json([row], table.machine()))
    assert stored["rows"][0]["seconds"] == {"A": [1.0], "B": [3.0]}
    assert stored["rows"][0]["ratios"] == {"A": 1.0, "B": 3.0}
    assert stored["machine"]["cores"] >= 1
