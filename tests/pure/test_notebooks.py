# SPDX-License-Identifier: Apache-2.0
"""Notebooks are read without being run: they show what they put out. `make notebooks` runs them."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(30)

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
OWN_PATH = re.compile(r"/(?:home|root|tmp|Users|usr|opt|work)/|site-packages")


def cells(path, kind):
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def texts(output):
    if output["output_type"] == "stream":
        return ["".join(output["text"])]
    data = output.get("data", {})
    return ["".join(text) for kind, text in data.items() if kind.startswith("text/")]


def test_they_are_numbered():
    assert [path.name[:2] for path in NOTEBOOKS] == [
        f"{n:02}" for n in range(1, 1 + len(NOTEBOOKS))
    ]
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_opens_with_what_the_reader_will_know(self, path):
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
        title, promise, *bullets = (line for line in "".join(first["source"]).split("\n") if line)
        assert first["cell_type"] == "markdown"
        assert title.startswith("# ")
        assert promise == "What you will know at the end:"
        assert 2 <= sum(line.startswith("- ") for line in bullets) <= 4

    def test_was_run_from_top_to_bottom_without_complaint(self, path):
        code = cells(path, "code")
        assert [cell["execution_count"] for cell in code] == list(range(1, 1 + len(code)))
        outputs = [output for cell in code for output in cell["outputs"]]
        assert outputs
        assert not [output for output in outputs if output["output_type"] == "error"]
        assert not [output["text"] for output in outputs if output.get("name") == "stderr"]

    def test_shows_nothing_of_the_machine_it_ran_on(self, path):
        outputs = [output for cell in cells(path, "code") for output in cell["outputs"]]
        found = [OWN_PATH.search(text) for output in outputs for text in texts(output)]
        assert not any(found)
