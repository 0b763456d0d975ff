# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from npu_keras import cli

pytestmark = pytest.mark.timeout(30)


def test_without_arguments_help_is_printed(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert "usage: python -m npu_keras" in text
    assert all(name in text and help_text in text for name, (_, help_text) in cli.COMMANDS.items())


def test_unknown_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["fly"])
    assert caught.value.code == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err


@pytest.mark.parametrize("returned, status", [(None, 0), (3, 3)])
def test_arguments_go_to_the_module_of_the_command(monkeypatch, returned, status):
    received = []
    module = SimpleNamespace(main=lambda argv: received.append(argv) or returned)
    monkeypatch.setitem(sys.modules, "npu_keras.demo", module)
    assert cli.main(["demo", "--help", "-n", "2"]) == status
    assert received == [["--help", "-n", "2"]]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"]])
def test_tensorflow_is_not_imported(arguments):
    command = [sys.executable, "-X", "importtime", "-m", "npu_keras", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "NPU_KERAS_LAZY"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "usage: python -m npu_keras" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not {"tensorflow", "keras", "tf_keras"} & imported


def test_a_reader_that_has_gone_is_no_error():
    script = """
import sys, types
from npu_keras import cli
sys.modules["npu_keras.demo"] = types.SimpleNamespace(main=lambda argv: print("x" * 99_999))
sys.exit(cli.main(["demo"]))
"""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run([sys.executable, "-c", script], stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")
