# SPDX-License-Identifier: Apache-2.0
"""Benchmarks take turns, and their table says what was measured."""

import json

from benchmarks import table
from benchmarks.harness import Row, Timed, in_turns


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
    assert text[-2] == "| row | A | 1000 (1000 to 5500) | 1 |  |  |"
    assert text[-1] == "| row | B | 500 (500 to 2750) | 0.500 | <= 0.4 | no |"


def test_every_time_is_kept():
    row = Row("row", [Timed("A", [1.0]), Timed("B", [3.0])], {})
    stored = json.loads(table.as_json([row], table.machine()))
    assert stored["rows"][0]["seconds"] == {"A": [1.0], "B": [3.0]}
    assert stored["rows"][0]["ratios"] == {"A": 1.0, "B": 3.0}
    assert stored["machine"]["cores"] >= 1
