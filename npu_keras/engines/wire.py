# SPDX-License-Identifier: Apache-2.0
"""JSON messages over a TCP socket, one a line."""

import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from typing import Any

_SEND_TIMEOUT_S = 5.0
_CHUNK = 1 << 16


class Wire:
    """A connected socket that carries dictionaries both ways.

    Sending is safe from several threads; receiving belongs to one.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_SEND_TIMEOUT_S)
        self._socket = connection
        self._lock = threading.Lock()
        self._pending = b""

    def fileno(self) -> int:
        """The file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, **message: Any) -> bool:
        """Sends a message; returns whether the other side could take it."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """Reads what has arrived; returns the complete messages, or None at the end.

        Raises:
            ValueError: if what has arrived is no dictionary.
        """
        try:
            data = self._socket.recv(_CHUNK)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError(f"Expected JSON objects. Received: {messages!r}.")
        return messages

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def connect(hosts: Sequence[str], port: int, timeout_s: float) -> Wire:
    """Connects to the first of `hosts` that answers.

    Args:
        hosts: addresses of one machine, the best first.
        port: int.
        timeout_s: float, seconds for each address.

    Raises:
        OSError: if none answers.
    """
    error: OSError = OSError("no address was given")
    for host in hosts:
        try:
            return Wire(socket.create_connection((host, port), timeout=timeout_s))
        except OSError as caught:
            error = caught
    raise error


def listen(host: str) -> socket.socket:
    """Listens on a free port of `host`, or of all addresses where `host` is none of this machine's.

    The latter is so in a container that is reached through the address of its machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family)
    except OSError:
        return socket.create_server(("", 0))


def own_addresses() -> list[str]:
    """Addresses under which other hosts may reach this one, the most likely first."""
    name = socket.gethostname()
    found = [name]
    with contextlib.suppress(OSError):
        found += [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: asks the routing table for our side
        found.insert(0, probe.getsockname()[0])
    return list(dict.fromkeys(found))
