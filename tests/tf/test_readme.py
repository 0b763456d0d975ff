# SPDX-License-Identifier: Apache-2.0
"""What the README shows runs as written, and prints what the README says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)
FOLLOWING = [*BLOCKS[1:], ("", "")]
SCRIPT, COMMANDS = next(
    (code, commands)
    for (_, code), (_, commands) in zip(BLOCKS, FOLLOWING, strict=True)
    if code.startswith("# train.py\n")
)


def python_blocks():
    blocks = []
    for (language, code), (kind, text) in zip(BLOCKS, FOLLOWING, strict=True):
        if language == "python":
            shown = text.splitlines() if kind == "text" else []
            line = README[: README.index(code)].count("\n") + 1
            blocks.append(pytest.param(code, shown, id=f"line {line}"))
    return blocks


def environment():
    env = {name: value for name, value in os.environ.items() if name != "NPU_KERAS_LAZY"}
    return {**env, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


def output_of(command, folder):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def with_free_numbers(line):
    """A pattern of a line whose numbers and remarks in brackets may differ between machines."""
    free = re.sub(r"\\\(.*?\\\)", r"\\(.*?\\)", re.escape(line))
    return re.sub(r"\d+", r"\\d+", free)


@pytest.mark.parametrize("code, shown", python_blocks())
def test_block(tmp_path, code, shown):
    (tmp_path / "train.py").write_text(code)
    lines = output_of(["-W", "error::UserWarning", "train.py"], tmp_path)
    exact = re.findall(r"^print\(.*\)  # (.+)$", code, re.M)
    if code == SCRIPT:
        assert [line for line in lines if re.match(r"rank 0 of 1: sum of weights -?\d", line)]
        return
    assert exact or shown
    for text in exact:
        assert text in lines
    for text in shown:
        assert [line for line in lines if re.fullmatch(with_free_numbers(text), line)]


@pytest.mark.distributed
@pytest.mark.parametrize("command", re.findall(r"^python (.+? -n 2 .+?)  ", COMMANDS, re.M))
def test_two_processes_end_with_the_same_weights(tmp_path, command):
    (tmp_path / "train.py").write_text(SCRIPT)
    # With a time-out, the launcher leaves no process behind.
    limited = command.replace(" run ", " run --timeout 240 ")
    lines = output_of(shlex.split(limited), tmp_path)
    ends = [re.fullmatch(r"\[(\d)\] rank \1 of 2: sum of weights (.+)", line) for line in lines]
    sums = {match[1]: float(match[2]) for match in ends if match}
    assert sorted(sums) == ["0", "1"]
    assert sums["0"] == sums["1"]


def test_commands_for_several_hosts(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (command,) = re.findall(r"^python (.+?--hosts.+?)  ", COMMANDS, re.M)
    lines = output_of(shlex.split(command), tmp_path)
    commands = [line for line in lines if not line.startswith("#")]
    assert all(line.endswith(" train.py") for line in commands)
    assert all("alpha" in line and "beta" in line for line in commands)


def test_pictures_and_linked_files_are_there():
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", README)
    assert len(pictures) == 2
    for picture in pictures:
        assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")
    linked = re.findall(r"[^!]\[[^\]]+\]\(([\w/]+\.\w+)\)", README)
    notebooks = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks <= set(linked)
    assert all((ROOT / path).is_file() for path in linked)


def test_every_make_target_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert set(re.findall(r"^make ([a-z-]+)", README, re.M)) - targets == set()
