# SPDX-License-Identifier: Apache-2.0
"""The launcher's end of one rank: what comes from it, and what goes to it."""

import contextlib
import os
import socket
import sys
from typing import Self

from npu_keras.rank_process import HELLO, STATUS


class Rank:
    """One rank of a run, from its arrival to its end.

    Args:
        number: the rank.
        leader: process id of the script, which leads a process group.
        control: connection to the process around the script.
        output: descriptor from which the script's stdout and stderr are read.
    """

    def __init__(self, number: int, leader: int, control: socket.socket, output: int) -> None:
        self.number = number
        self.leader = leader
        self.control = control
        self.output = output
        self.status: int | None = None
        self.reading = True
        self._partial = b""

    @classmethod
    def accept(cls, listener: socket.socket) -> Self | None:
        """Takes the next rank that connects, or `None` if it died while doing so."""
        control, _ = listener.accept()
        data, descriptors, _, _ = socket.recv_fds(control, HELLO.size, 1)
        if not descriptors:
            control.close()
            return None
        number, leader = HELLO.unpack(data)
        return cls(number, leader, control, descriptors[0])

    def send(self, number: int) -> None:
        """Sends a signal to the script's process group, unless the script has ended."""
        if self.status is None:
            with contextlib.suppress(OSError):
                self.control.send(bytes([number]))

    def read_status(self) -> int | None:
        """Reads the script's exit status, minus the signal if one killed it.

        Returns:
            An int, or `None` if the connection was lost before there was one.
        """
        try:
            data = self.control.recv(STATUS.size)
        except ConnectionError:
            return None
        return int(STATUS.unpack(data)[0]) if data else None

    def print_lines(self) -> None:
        """Prints what has come, by whole lines; at the end of the output also the last piece."""
        data = os.read(self.output, 1 << 16)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.reading = bool(data)
        if not self.reading and self._partial:
            lines.append(self._partial)
        prefix = b"[%d] " % self.number
        sys.stdout.buffer.write(b"".join(prefix + line + b"\n" for line in lines))
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Lets go: the process at the other end kills what is left of the script, and ends."""
        self.control.close()
        os.close(self.output)
