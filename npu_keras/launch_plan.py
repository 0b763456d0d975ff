# SPDX-License-Identifier: Apache-2.0
"""What a launcher needs to know: the engine, the environment, the ports and the commands."""

import contextlib
import importlib.util
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from npu_keras import cluster, tf_config

FIRST_PORT = 29500  # below the ports that systems give to outgoing connections

_THIS_MACHINE = {
    "HYDRA_LAUNCHER": "fork",  # MPICH otherwise starts `srun` inside a Slurm allocation
    "HYDRA_RMK": "user",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5: any number of ranks
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
}


def default_engine() -> str:
    """Names the engine that this environment can start.

    Returns:
        `"mpi"` if mpi4py and an `mpiexec` are installed, else `"collective"`.
    """
    return "mpi" if importlib.util.find_spec("mpi4py") and _mpiexec() else "collective"


def find_mpiexec() -> str:
    """Finds `mpiexec` beside this Python, where `pip install mpich` puts it, or on `PATH`.

    Returns:
        Its path.

    Raises:
        ValueError: if there is none.
    """
    path = _mpiexec()
    if path is None:
        raise ValueError(
            f"Expected mpiexec in {Path(sys.executable).parent} or on PATH. Received: none. "
            "Install it with `pip install 'npu-keras[mpi]'`, or give --engine collective."
        )
    return path


def _mpiexec() -> str | None:
    here = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=here) or shutil.which("mpiexec")


def script_command(script: str, args: Sequence[str], module: bool = False) -> list[str]:
    """Makes the command that runs a script.

    Args:
        script: path of a Python script, or name of a module.
        args: its arguments.
        module: whether `script` names a module.

    Returns:
        The command, with the Python of this process.

    Raises:
        ValueError: if there is no such script.
    """
    if not module and not Path(script).exists():
        raise ValueError(
            f"Expected the path of a Python script. Received: script={script!r}, which does not "
            "exist. For a module, put -m before its name."
        )
    return [sys.executable, *(["-m"] if module else []), script, *args]


def rank_environment(env: Mapping[str, str], size: int, steps: int | None = None) -> dict[str, str]:
    """Makes the environment that all ranks on this machine share.

    Args:
        env: environment to start from.
        size: number of ranks; they share the cores.
        steps: value of `NPU_KERAS_STEPS`, or `None`.

    Returns:
        A new dictionary, in which no variable names a rank.
    """
    ranks = {name: value for name, value in env.items() if name not in cluster.VARIABLES}
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        ranks.setdefault(name, str(max(1, cores // size)))
    ranks["PYTHONUNBUFFERED"] = "1"
    ranks["TF_GRPC_REUSE_PORT"] = "1"  # seen on TensorFlow 2.21: it can listen on a held port
    ranks |= _THIS_MACHINE
    return ranks if steps is None else {**ranks, cluster.STEPS: str(steps)}


@contextlib.contextmanager
def free_addresses(count: int) -> Iterator[list[str]]:
    """Holds free ports, so that nobody else is given one before the ranks listen on them.

    The sockets share their port with whoever sets `SO_REUSEPORT` too, and never listen. Without
    that option (Windows) they are let go as soon as all ports are chosen.

    Args:
        count: number of ports.

    Yields:
        A list of `127.0.0.1:port`.

    Raises:
        ValueError: if there are not so many.
    """
    with contextlib.ExitStack() as stack:
        try:
            held = [stack.enter_context(socket.socket()) for _ in range(count)]
        except OSError as error:
            raise ValueError(
                "Expected a number of ranks for each of which this machine has a free port. "
                f"Received: {count} ({error}). Start fewer ranks."
            ) from error
        share = getattr(socket, "SO_REUSEPORT", None)
        for one in held:
            if share is not None:
                one.setsockopt(socket.SOL_SOCKET, share, 1)
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
        if share is None:
            stack.close()
        yield addresses


def host_commands(
    hosts: Sequence[str],
    size: int | None,
    command: Sequence[str],
    mpiexec: str = "",
    steps: int | None = None,
) -> list[str]:
    """Makes the shell lines that start a script on several hosts.

    Args:
        hosts: names of the hosts; `host:port` sets the first port of a host.
        size: number of ranks, a multiple of the number of hosts. Defaults to one per host.
        command: the script's command, the same on every host.
        mpiexec: path of MPICH's `mpiexec`; if empty, the ranks are started with `TF_CONFIG`.
        steps: value of `NPU_KERAS_STEPS`, or `None`.

    Returns:
        A list of lines; comments say on which host a line is to be run.

    Raises:
        ValueError: if the ranks cannot be shared equally, or a host is malformed.
    """
    size = size or len(hosts)
    each, rest = divmod(size, len(hosts))
    if rest:
        raise ValueError(
            f"Expected -n to be a multiple of the number of hosts, {len(hosts)}. Received: "
            f"-n {size}. Give -n {len(hosts) * (each + 1)}, or leave it out for one per host."
        )
    pairs = [_host_and_port(host) for host in hosts]
    names = [name for name, _ in pairs]
    prefix = "" if steps is None else f"{cluster.STEPS}={steps} "
    if mpiexec:
        if any(":" in host for host in hosts):
            raise ValueError(
                "Expected names of hosts without ports, which MPI chooses itself. Received: "
                f"hosts={list(hosts)!r}. Leave the ports out, or give --engine collective."
            )
        line = [mpiexec, "-hosts", ",".join(names), "-ppn", str(each), "-n", str(size), *command]
        return ["# once, on any of the hosts", prefix + shlex.join(line)]
    addresses = [f"{name}:{port + i}" for name, port in pairs for i in range(each)]
    return [
        line
        for rank, config in enumerate(tf_config.render(addresses, r) for r in range(size))
        for line in (
            f"# on {names[rank // each]}, rank {rank}",
            prefix + f"TF_CONFIG={shlex.quote(config)} {shlex.join(command)}",
        )
    ]


def _host_and_port(host: str) -> tuple[str, int]:
    name, _, port = host.partition(":")
    if not name or not (port or str(FIRST_PORT)).isdecimal():
        raise ValueError(
            "Expected hosts as names or addresses separated by commas, each perhaps with "
            f":port. Received: {host!r}. Correct --hosts."
        )
    return name, int(port or FIRST_PORT)
