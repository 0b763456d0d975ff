# SPDX-License-Identifier: Apache-2.0
"""Watches the ranks of one run: their output, their ends, and the signals meant for them."""

import contextlib
import functools
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO

from npu_keras.rank_channel import Rank
from npu_keras.rank_process import end_group

Start = Callable[[str, IO[bytes]], list[subprocess.Popen[bytes]]]

TIMED_OUT = 124  # as `timeout` of coreutils
_POLL_S = 0.1
_KILL_AFTER_S = 5.0  # from SIGTERM to SIGKILL
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervise(start: Start, size: int, grace_s: float, timeout_s: float | None = None) -> int:
    """Starts the ranks, prints their lines as `[rank] line`, and sees all of them end.

    Once a rank has failed or a signal was forwarded, the others have `grace_s` to end by
    themselves; then come SIGTERM and SIGKILL, to the process groups of the scripts.

    Args:
        start: function of the path of a Unix socket and of a file for what the processes print
            besides the scripts; starts processes that become `rank_process.main` of each rank.
        size: number of ranks.
        grace_s: seconds.
        timeout_s: seconds for the whole run, or `None` for as long as it takes.

    Returns:
        0, or the exit status of the first rank that failed, 128 + the signal if one killed it;
        124 after `timeout_s`.
    """
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="npu_keras-")
        stack.callback(folder.cleanup)
        log = stack.enter_context(tempfile.TemporaryFile())
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        path = os.path.join(folder.name, "ranks")
        listener.bind(path)
        listener.listen(size)
        wake = stack.enter_context(_signals())
        run = _Run(size, listener, wake, grace_s, arrived=folder.cleanup)
        stack.callback(run.close)
        if timeout_s is not None:
            run.time_out_at = time.monotonic() + timeout_s
        run.processes = start(path, log)
        return run.watch(log)


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yields a socket from which the signals that arrive are read, a byte each."""
    wake, sender = socket.socketpair()
    wake.setblocking(False)
    sender.setblocking(False)
    # Under nohup SIGHUP is ignored, and must stay so.
    caught = [s for s in _FORWARDED if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    before = {number: signal.signal(number, _pass) for number in caught}
    fd = signal.set_wakeup_fd(sender.fileno())
    try:
        yield wake
    finally:
        signal.set_wakeup_fd(fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        wake.close()
        sender.close()


def _pass(number: int, frame: FrameType | None) -> None:
    """Takes the place of the default action; the wake-up socket carries the signal."""


def _say(text: str) -> None:
    print(f"npu_keras run: {text}", file=sys.stderr, flush=True)


class _Run:
    def __init__(
        self,
        size: int,
        listener: socket.socket,
        wake: socket.socket,
        grace_s: float,
        arrived: Callable[[], None],
    ) -> None:
        self.arrived = arrived
        self.size = size
        self.grace_s = grace_s
        self.time_out_at: float | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ranks: list[Rank] = []
        self.result = 0
        self.drain_until: float | None = None
        self.stages: list[tuple[float, int]] | None = None  # when to send what, once stopping
        self.sent: int | None = None  # the last signal to all ranks, for those still on their way
        self.selector = selectors.DefaultSelector()
        self._on(listener, functools.partial(self._connect, listener))
        self._on(wake, functools.partial(self._forward, wake))

    def _on(self, file: int | socket.socket, action: Callable[[], None]) -> None:
        self.selector.register(file, selectors.EVENT_READ, action)

    def watch(self, log: IO[bytes]) -> int:
        while not self._all_ended():
            for key, _ in self.selector.select(_POLL_S):
                key.data()
            self._check_time()
            self._check_start(log)
        return self.result

    def _all_ended(self) -> bool:
        if any(rank.status is None for rank in self.ranks):
            return False
        if len(self.ranks) < self.size:
            return bool(self.result) and all(p.poll() is not None for p in self.processes)
        if not any(rank.reading for rank in self.ranks):
            return True
        # A process that left its group may hold the output open for ever.
        self.drain_until = self.drain_until or time.monotonic() + 1.0
        return time.monotonic() > self.drain_until

    def _connect(self, listener: socket.socket) -> None:
        rank = Rank.accept(listener)
        if rank is None:  # died on the way; `_check_start` tells
            return
        self.ranks.append(rank)
        if len(self.ranks) == self.size:
            self.arrived()  # now, so that nothing stays behind even if the launcher is killed
        self._on(rank.control, functools.partial(self._end, rank))
        self._on(rank.output, functools.partial(self._read, rank))
        if self.sent is not None:
            rank.send(self.sent)

    def _read(self, rank: Rank) -> None:
        rank.print_lines()
        if not rank.reading:
            self.selector.unregister(rank.output)

    def _end(self, rank: Rank) -> None:
        rank.status = rank.read_status()
        self.selector.unregister(rank.control)
        if rank.status is None:  # its process was killed with no time to report
            end_group(rank.leader, signal.SIGKILL)
            rank.status = self._status_of_lost()
        if rank.status:
            self._fail(rank)

    def _status_of_lost(self) -> int:
        if len(self.processes) < self.size:  # of `mpiexec`: the code given to `MPI_Abort`
            with contextlib.suppress(subprocess.TimeoutExpired):
                return max(self.processes[0].wait(1.0), 0) or -signal.SIGKILL
        return -signal.SIGKILL

    def _fail(self, rank: Rank) -> None:
        status = rank.status or 0
        text = f"rank {rank.number} ended with exit status {status}"
        if status < 0:
            name = signal.Signals(-status).name
            text = f"rank {rank.number} died by signal {-status} ({name})"
            status = 128 - status
        ended = {other.number for other in self.ranks if other.status is not None}
        others = sorted(set(range(self.size)) - ended)  # some may still be on their way
        if others and self.stages is None:
            text += f"; ranks {others} have {self.grace_s:g} s to end"
        _say(text)
        self.result = self.result or status
        self._stop_within(self.grace_s)

    def _stop_within(self, seconds: float) -> None:
        if self.stages is None or not seconds:
            soon = time.monotonic() + seconds
            self.stages = [(soon, signal.SIGTERM), (soon + _KILL_AFTER_S, signal.SIGKILL)]

    def _forward(self, wake: socket.socket) -> None:
        for number in wake.recv(64):
            if number in _FORWARDED:
                _say(f"forwarding signal {number} ({signal.Signals(number).name}) to all ranks")
                self._stop_within(self.grace_s)
                self._send(number)
                if len(self.ranks) < self.size:
                    self.result = self.result or 128 + number
                    self._end_processes(signal.SIGTERM)

    def _send(self, number: int) -> None:
        self.sent = number
        for rank in self.ranks:
            rank.send(number)

    def _check_time(self) -> None:
        now = time.monotonic()
        if self.time_out_at is not None and now > self.time_out_at and not self.result:
            _say("the time limit is over; ending all ranks")
            self.result = TIMED_OUT
            self._stop_within(0.0)
        while self.stages and now > self.stages[0][0]:
            _, number = self.stages.pop(0)
            left = sorted(rank.number for rank in self.ranks if rank.status is None)
            if left:
                _say(f"sending {signal.Signals(number).name} to ranks {left}")
            self._send(number)
            if len(self.ranks) < self.size:
                self._end_processes(number)

    def _check_start(self, log: IO[bytes]) -> None:
        codes = [process.poll() for process in self.processes]
        if len(self.ranks) == self.size or self.result or all(code is None for code in codes):
            return
        log.seek(0)
        printed = log.read().decode(errors="replace").strip()
        _say(f"{len(self.ranks)} of {self.size} ranks started. {printed}")
        self.result = next((code for code in codes if code and code > 0), 1)
        self._stop_within(0.0)

    def _end_processes(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                end_group(process.pid, number)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.selector.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            self._end_processes(number)
            deadline = time.monotonic() + _KILL_AFTER_S
            while time.monotonic() < deadline and any(p.poll() is None for p in self.processes):
                time.sleep(0.01)
