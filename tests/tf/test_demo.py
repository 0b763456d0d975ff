# SPDX-License-Identifier: Apache-2.0
import csv
import importlib.util

import keras
import pytest

from npu_keras import demo
from npu_keras.event_log import read_events


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    output = tmp_path_factory.mktemp("demo") / "files"
    return output, demo.run(output, epochs=3)


@pytest.mark.slow
def test_the_scale_comes_down_and_the_network_learns(short_run):
    scaled, plain, float32 = short_run[1]
    assert [row.tried for row in short_run[1]] == [135] * 3
    assert 20 <= scaled.skipped <= 45
    assert 2**14 <= scaled.scale <= 2**22
    assert scaled.accuracy > 0.75
    assert plain.accuracy > 0.85
    assert abs(plain.accuracy - float32.accuracy) < 0.05
    assert (plain.skipped, plain.scale, float32.skipped, float32.scale) == (0, None, 0, None)


@pytest.mark.slow
def test_the_files_tell_of_the_same_run(short_run):
    output, (scaled, *_) = short_run
    events, damaged = read_events(output / "events.jsonl")
    assert damaged == []
    assert sum(event.skipped for event in events) == scaled.skipped
    assert (events[0].attempt, events[0].kind, events[0].scale_before) == (1, "skip", 2.0**32)
    assert events[-1].scale_after == scaled.scale
    with (output / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert float(rows[-1]["skipped_steps"]) == scaled.skipped
    assert float(rows[-1]["loss_scale"]) == scaled.scale
    assert (output / "loss_scale.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_policy_is_put_back(short_run):
    assert keras.config.dtype_policy().name == "float32"


def test_the_summary_has_a_row_for_each_run(tmp_path):
    rows = [
        demo.Result("float16, with loss scaling", 540, 62, 2.0**19, 0.967, 30.0),
        demo.Result("float32", 540, 0, None, 0.964, 20.0),
    ]
    lines = demo.summary(rows, tmp_path).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:4]] == [
        "test accuracy",
        "96.7%",
        "96.4%",
    ]
    assert lines[2].split()[-4:] == ["540", "62", "2**19", "96.7%"]
    assert lines[3].split() == ["float32", "540", "0", "-", "96.4%"]
    assert [line.split()[0] for line in lines[-3:]] == [
        str(tmp_path / name) for name in ("loss_scale.png", "events.jsonl", "history.csv")
    ]


def test_missing_packages_are_named_with_the_remedy(monkeypatch, capsys, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name)
    )
    assert demo.main(["--output", str(tmp_path / "files")]) == 1
    message = capsys.readouterr().err
    assert "scikit-learn" in message
    assert "pip install 'npu-keras[demo]'" in message
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize("epochs", ["0", "-1", "many"])
def test_epochs_are_checked(capsys, epochs):
    with pytest.raises(SystemExit, match="2"):
        demo.main([f"--epochs={epochs}"])
    assert "expected a whole number of at least 1" in capsys.readouterr().err
