# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from npu_keras import report
from npu_keras.events import Event

HOSTILE = [
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "$\\frac{\ud800\x1b[2J\"'&lt;" + "W" * 300,
    "模型/kernel",
]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
CHROMIUM = CHROMIUM or shutil.which("google-chrome")


def events(count=12):
    return [
        Event(2 * i + 1, "back off", 2.0 ** (24 - i), 2.0 ** (23 - i), 1, HOSTILE[i % 3], 4)
        for i in range(count)
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "<i>events.jsonl"
    lines = [json.dumps(event._asdict()) for event in events()]
    path.write_text("\n".join([*lines[:3], "<b>garbage", *lines[3:], lines[0][:40]]))
    return path


@pytest.fixture
def no_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


class Page(HTMLParser):
    """The tags, the addresses and the visible text of a page."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.addresses, self.texts = [], [], []
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "onerror", "onload")]

    def handle_data(self, data):
        if data.strip() and self.tags[-1] != "style":
            self.texts.append(data.strip())


def test_the_terminal_gets_verdict_numbers_suspects_and_advice(
    file, tmp_path, capsys, no_matplotlib
):
    assert report.main([str(file), "-o", str(tmp_path / "r.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "<i>events.jsonl: SETTLING",
        "The scale came down from 2**24 to 2**12 in 12 skipped steps, up to step 23,",
        "where the record ends.",
    ]
    assert "skipped                     12 (52.2 %)" in lines
    assert "       4 (33.3 %)  模型/kernel" in lines
    assert "- Let it run: these steps are lost, nothing else is." in lines
    assert "2 lines of the file are damaged and left out (4, 14)" in lines
    assert lines[-1] == f"Written: {tmp_path / 'r.html'}"
    assert "\x1b" not in "".join(lines)


def test_the_page_has_everything_in_order_and_escaped(file):
    page = Page(report.page(report.make(file)))
    wanted = [
        "Loss scale of <i>events.jsonl", "↘ Settling",
        "2 lines of the file are damaged and left out (4, 14)", "Numbers", "12 (52.2 %)",
        "The loss scale, step by step", "Variables that overflowed", "Worst variables",
        HOSTILE[0], "What to try",
    ]  # fmt: skip
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert [text for text in page.texts if text in wanted] == wanted
    assert not {"script", "i", "b", "link", "iframe"} & set(page.tags)
    assert page.tags.count("img") == 2
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)


def test_without_matplotlib_the_page_says_how_to_get_figures(file, no_matplotlib):
    made = report.make(file)
    page = Page(report.page(made))
    assert "img" not in page.tags
    assert any("pip install 'npu-keras[plot]'" in text for text in page.texts)
    assert "Worst variables" in page.texts


def test_a_file_without_events_is_no_error(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "empty.jsonl").touch()
    assert report.main([str(tmp_path / "empty.jsonl"), "-o", str(tmp_path / "r.html")]) == 0
    assert "empty.jsonl: NOTHING RECORDED" in capsys.readouterr().out
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.tags.count("img") == 1
    assert "? Nothing recorded" in page.texts


def test_many_variables_are_cut_and_counted(capsys):
    many = [Event(i + 1, "skip", 8.0, 8.0, 1, f"v{i:02}") for i in range(45)]
    facts = report.RunFacts(many)
    made = report.Report("e", report.judge(many), facts, [], [])
    assert "         and 40 more variables" in report.text(made).splitlines()
    page = Page(report.page(made))
    assert "And 25 more variables." in page.texts
    assert [text for text in page.texts if text.startswith("v")][-1] == "v19"


@pytest.mark.parametrize("arguments", [["nowhere.jsonl"], ["."], ["events", "-o", "no/r.html"]])
def test_files_that_cannot_be_read_or_written_are_named(
    arguments, tmp_path, monkeypatch, capsys, no_matplotlib
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").touch()
    assert report.main(arguments) == 1
    output = capsys.readouterr()
    assert output.err.startswith(f"{arguments[-1]}: ")
    assert output.out == ""


def test_the_file_of_events_is_not_overwritten(file, capsys, no_matplotlib):
    before = file.read_bytes()
    assert report.main([str(file), "-o", str(file)]) == 1
    assert "would replace the file of events" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_no_framework_is_imported(file, tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "npu_keras", "report", str(file)]
    command += ["-o", str(tmp_path / "r.html")]
    env = {name: value for name, value in os.environ.items() if name != "NPU_KERAS_LAZY"}
    env["PYTHONIOENCODING"] = "ascii"  # a terminal that cannot show every name
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert "\\u6a21\\u578b/kernel" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "npu_keras.verdict" in imported
    assert not {"tensorflow", "keras", "tf_keras"} & imported


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian's package `chromium`)")
@pytest.mark.timeout(120)
def test_a_browser_shows_the_figures_and_runs_nothing(file, tmp_path):
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    (tmp_path / "r.html").write_text(report.page(report.make(file)), encoding="utf-8")
    shot = tmp_path / "shot.png"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=600,2000"]
    command += [f"--screenshot={shot}", "--dump-dom", (tmp_path / "r.html").as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=100, check=True)
    dom = Page(done.stdout.decode())
    assert "settling: loss scale of <i>events.jsonl" in dom.texts  # no script has changed the title
    pixels = (image.imread(shot)[..., :3] * 255).round().astype(int)
    near = {
        name: (abs(pixels - colour).max(axis=-1) < 12).sum(axis=1)
        for name, colour in {"verdict": (0, 114, 178), "bars": (213, 94, 0)}.items()
    }
    assert near["verdict"][:200].max() > 4  # the frame at its left
    assert near["bars"].max() > 250  # a bar of the second figure, most of the page wide
    assert (pixels[:, -8:] > 250).all()  # nothing, long names included, runs out of the page


def test_a_file_of_something_else_is_refused(tmp_path, capsys):
    other = tmp_path / "history.csv"
    other.write_text("epoch,loss\n0,1.5\n")
    assert report.main([str(other), "-o", str(tmp_path / "page.html")]) == 1
    assert "history.csv: no line of it is an event" in capsys.readouterr().out
    assert not (tmp_path / "page.html").exists()
