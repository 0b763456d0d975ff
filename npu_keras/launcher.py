# SPDX-License-Identifier: Apache-2.0
"""`python -m npu_keras run`: one process per rank on this machine."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from npu_keras import cluster, launch_plan, supervisor, tf_config

GRACE_S = 15.0
_MOST = 2**31 - 1  # of ranks and steps, in 32 bits
_BROKEN_PIPE = 128 + 13
_EPILOG = f"""\
Every line of output comes as "[rank] line", stdout and stderr together. When a rank fails, the
others have --grace seconds to report what they know, then every process is ended. SIGINT, SIGTERM
and SIGHUP go on to all ranks, which have --grace seconds to end. The exit status is that of the
first rank that failed, 128 + the signal if one killed it; {supervisor.TIMED_OUT} after --timeout.

environment of the ranks:
  OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS
                     unless set: the cores of this machine divided among the ranks
  {cluster.STEPS}    with --steps; see npu_keras.cluster.step_limit
  PYTHONUNBUFFERED   1, so that lines arrive when they are printed
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Starts a script once per rank, or prints how to start it on several hosts.

    Args:
        argv: arguments after `run`. Defaults to those of the process.

    Returns:
        The exit status: 0, or that of the first rank that failed.

    Example:

    >>> main(["-n", "2", "--hosts", "a,b", "--engine", "mpi", "-m", "timeit"])  # doctest: +SKIP
    # once, on any of the hosts
    /usr/bin/mpiexec -hosts a,b -ppn 1 -n 2 /usr/bin/python -m timeit
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        mpi = (options.engine or launch_plan.default_engine()) == "mpi"
        mpiexec = launch_plan.find_mpiexec() if mpi else ""
        command = launch_plan.script_command(options.script, options.args, options.module)
        if options.hosts:
            lines = launch_plan.host_commands(
                options.hosts, options.n, command, mpiexec, options.steps
            )
            print("\n".join(lines))
            return 0
        _check_alone()
    except ValueError as error:
        parser.error(str(error))
    try:
        return _run(options, command, mpiexec)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return _BROKEN_PIPE


def _run(options: argparse.Namespace, command: Sequence[str], mpiexec: str) -> int:
    size = options.n or 1
    env = launch_plan.rank_environment(os.environ, size, options.steps)
    with contextlib.ExitStack() as stack:
        try:
            ports = [] if mpiexec else stack.enter_context(launch_plan.free_addresses(size))
        except ValueError as error:
            print(f"python -m npu_keras run: error: {error}", file=sys.stderr)
            return 2

        def start(path: str, log: IO[bytes]) -> list[subprocess.Popen[bytes]]:
            run = [sys.executable, "-m", "npu_keras.rank_process", path, *command]
            if mpiexec:
                return [_open([mpiexec, "-n", str(size), *run], env, log)]
            configs = [tf_config.render(ports, rank) for rank in range(size)]
            return [_open(run, {**env, "TF_CONFIG": config}, log) for config in configs]

        return supervisor.supervise(start, size, options.grace, options.timeout)


def _open(
    command: Sequence[str], env: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    # In a session of its own, out of reach of the terminal's Ctrl-C, which is forwarded instead.
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _check_alone() -> None:
    here = cluster.find()
    if here.size > 1:
        raise ValueError(
            "Expected to be started alone, to start the ranks itself. Received: an environment "
            f"that makes this process rank {here.rank} of {here.size} ({here.source}). "
            "Start the script itself in this way, or unset those variables."
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_keras run",
        description="Start a script as several ranks that train together, on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-n", type=_positive, metavar="N", help="number of ranks (default: 1, or one per host)")
    add(
        "--engine",
        choices=("mpi", "collective"),
        help="mpi: under mpiexec; collective: with TF_CONFIG on free ports "
        "(default: mpi if mpi4py and mpiexec are there)",
    )
    add("--steps", type=_positive, metavar="N", help="steps after which every rank stops")
    add("--timeout", type=_seconds, metavar="S", help="end the run after S seconds")
    add(
        "--grace",
        type=_seconds,
        default=GRACE_S,
        metavar="S",
        help="seconds that the others have when a rank fails (default: %(default)g)",
    )
    add(
        "--hosts",
        type=lambda text: text.split(","),
        metavar="A,B",
        help="print the command to start on each host, and start nothing; "
        "host:port sets the first port of a host for collective",
    )
    add("-m", dest="module", action="store_true", help="script is the name of a module")
    add("script", help="Python script, or module with -m")
    add("args", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _MOST:
        limit = "1 or more" if value < 1 else f"at most {_MOST}"
        raise argparse.ArgumentTypeError(f"expected {limit}, received {text:.40}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, received {text:.40}")
    return value
