# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for their turn: contestants live beside each other, and one of them runs."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.workers.protocol import PEAK_MEMORY, SOCKET

WORKERS = Path(__file__).parent / "workers"
PATIENCE_S = 180.0


class Absent(Exception):
    """A contestant that cannot be started here; its text says why."""


class Contestant:
    """The processes of one contestant.

    Args:
        sockets: one connection for each rank.
        stopped: its processes, if they would take time of the others while it is not their turn.
    """

    def __init__(
        self, sockets: Sequence[socket.socket], stopped: Sequence["subprocess.Popen[str]"] = ()
    ) -> None:
        self._lines = [peer.makefile("rw") for peer in sockets]
        self._stopped = stopped
        self._signal(signal.SIGSTOP)

    def way(self, name: str, steps: int) -> Callable[[], float]:
        """Returns a function that has all ranks do something, and returns the slowest's seconds.

        It is done once before, untimed: caches are cold and threads asleep after others' turns.

        Args:
            name: what the worker calls it.
            steps: how often.
        """

        def run() -> float:
            self._signal(signal.SIGCONT)
            self.most(name, 1)
            seconds = self.most(name, steps)
            self._signal(signal.SIGSTOP)
            return seconds / steps

        return run

    def peak_memory(self) -> float:
        """Returns the most bytes that a rank has had in memory since it was started."""
        return self.most(PEAK_MEMORY, 1)

    def dismiss(self) -> None:
        """Tells all ranks that there are no more turns, whereupon they end."""
        self._signal(signal.SIGCONT)
        for lines in self._lines:
            lines.close()  # a socket stays open as long as a file made of it

    def most(self, name: str, steps: int) -> float:
        """Has all ranks do something, and returns the largest of what they answer.

        Args:
            name: what the worker calls it.
            steps: how often.
        """
        for lines in self._lines:
            lines.write(f"{name} {steps}\n")
            lines.flush()
        return max(self._seconds(lines) for lines in self._lines)

    def _signal(self, number: int) -> None:
        for process in self._stopped:
            process.send_signal(number)

    def _seconds(self, lines: object) -> float:
        answer = lines.readline()  # type: ignore[attr-defined]
        if not answer:
            raise RuntimeError("a rank has ended in the middle of its turn")
        return float(answer)


Started = contextlib.AbstractContextManager[Contestant]


class Field(contextlib.ExitStack):
    """All contestants of a run: each starts when it is first wanted, and stays to the end."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[str, Contestant] = {}

    def contestant(self, name: str, start: Callable[[], Started]) -> Contestant:
        """Returns a contestant.

        Args:
            name: of the contestant.
            start: starts it, and ends it.

        Raises:
            Absent: if it cannot be started here.
            RuntimeError: if it did not start.
        """
        if name not in self._started:
            self._started[name] = self.enter_context(start())
        return self._started[name]


class Setting(NamedTuple):
    """What a comparison is given.

    Attributes:
        quick: whether coarser figures will do.
        field: where its contestants are, for others to share.
    """

    quick: bool
    field: Field


@contextlib.contextmanager
def contestant(
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    ranks: int,
    busy: bool = False,
) -> Iterator[Contestant]:
    """Starts a contestant, and ends it.

    Args:
        commands: one for each process to be started, which may be a launcher of several ranks.
        environments: what each command's environment holds beside this process'.
        ranks: how many ranks will report.
        busy: whether its processes take time even while nothing is asked of them, so that they
            have to be stopped meanwhile; each command is then one rank.
    """
    with contextlib.ExitStack() as stack:
        path = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "socket")
        listener = stack.enter_context(socket.create_server(path, family=socket.AF_UNIX))
        listener.settimeout(1.0)
        common = {**os.environ, SOCKET: path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        printed = stack.enter_context(_shown_on_failure())
        processes = []
        for command, own in zip(commands, environments, strict=True):
            processes.append(
                subprocess.Popen(
                    command, env={**common, **own}, stdout=printed, stderr=printed, text=True
                )
            )
            stack.callback(_end, processes[-1])
        peers = []
        while len(peers) < ranks:
            peer = _accepted(listener, processes)
            if peer is None:
                raise RuntimeError("its ranks did not start; what they printed stands above")
            peers.append(stack.enter_context(peer))
        for peer in peers:
            peer.settimeout(PATIENCE_S)
            peer.makefile("r").readline()  # its rank: it is ready
        started = Contestant(peers, processes if busy else ())
        stack.callback(started.dismiss)
        yield started


@contextlib.contextmanager
def _shown_on_failure() -> Iterator[IO[str]]:
    with tempfile.TemporaryFile("w+") as printed:
        try:
            yield printed
        except RuntimeError:
            printed.seek(0)
            print(printed.read()[-4000:], file=sys.stderr)
            raise


def _accepted(
    listener: socket.socket, processes: Sequence["subprocess.Popen[str]"]
) -> socket.socket | None:
    """Returns the next rank that connects; None when a process ends before, or after too long."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        with contextlib.suppress(TimeoutError):
            return listener.accept()[0]
    return None


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGCONT)
    # Its ranks have ended with their sockets, unless they are stuck.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    process.kill()
    process.wait()
