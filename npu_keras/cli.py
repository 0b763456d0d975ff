# SPDX-License-Identifier: Apache-2.0
"""`python -m npu_keras`: finds the subcommand and hands over to its module."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

# name: (module with `main(argv)`, what it does). Imported when called: most need TensorFlow.
COMMANDS = {
    "run": ("npu_keras.launcher", "start a script as several ranks"),
    "report": ("npu_keras.report", "judge the loss scaling of a run by its file of events"),
    "doctor": ("npu_keras.doctor", "say what can be used here, for a bug report"),
    "demo": ("npu_keras.demo", "train a small model with loss scaling and show what happened"),
}


_BROKEN_PIPE = 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand.

    Args:
        argv: arguments of the command line. Defaults to those of the process.

    Returns:
        The exit status.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[argv[0]][0])
        try:
            status = int(module.main(argv[1:]) or 0)
            sys.stdout.flush()
        except BrokenPipeError:  # of `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            return _BROKEN_PIPE
        return status
    parser = _parser()
    parser.parse_args(argv)  # only help and errors are left
    parser.print_help()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_keras",
        description="Loss scaling and distributed gradient aggregation for Keras optimizers.",
        epilog="Each command has its own --help.",
    )
    commands = parser.add_subparsers(title="commands", metavar="command")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser
