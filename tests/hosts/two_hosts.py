# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces joined by a cable of limited speed.

A process of its own removes them, as soon as the tests have ended or have been killed.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LINK = "link0"
RATE = "1gbit"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29500
_REMOVE = """
read -r line
for name in "$@"; do
    ip netns pids "$name" | xargs -r kill -KILL
    ip netns delete "$name"
done
"""


class Host(NamedTuple):
    """Where a rank runs: `command` comes before its own command, `address` is `host:port`."""

    command: tuple[str, ...]
    address: str


class Link:
    """The cable between two namespaces.

    Args:
        names: the namespaces.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = names
        self.hosts = [
            Host(("ip", "netns", "exec", name), f"{address}:{PORT}")
            for name, address in zip(names, ADDRESSES, strict=True)
        ]

    def connect(self) -> None:
        """Joins the namespaces, and limits the speed both ways."""
        first, second = self._names
        _run("ip", "link", "add", LINK, "netns", first, "type", "veth",
             "peer", "name", LINK, "netns", second)  # fmt: skip
        for name, address in zip(self._names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/30", "dev", LINK)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", LINK, "up")
            _run("tc", "-n", name, "qdisc", "add", "dev", LINK, "root",
                 "tbf", "rate", RATE, "burst", "256kb", "latency", "50ms")  # fmt: skip

    def cut(self) -> None:
        """Takes the cable out."""
        _run("ip", "-n", self._names[0], "link", "set", LINK, "down")

    def heal(self) -> None:
        """Puts the cable in again."""
        _run("ip", "-n", self._names[0], "link", "set", LINK, "up")

    def sent_bytes(self) -> tuple[int, int]:
        """Bytes that each side has sent through the cable so far."""
        first, second = (self._sent(name) for name in self._names)
        return first, second

    def _sent(self, name: str) -> int:
        path = f"/sys/class/net/{LINK}/statistics/tx_bytes"
        return int(_run("ip", "netns", "exec", name, "cat", path))


def obstacle() -> str | None:
    """Why there can be no two hosts here; None if there can."""
    missing = [name for name in ("ip", "tc", "xargs") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian: apt-get install iproute2 findutils)"
    try:
        with connected():
            return None
    except subprocess.CalledProcessError as error:
        text = " ".join(error.stderr.split())
        return f"network namespaces do not work here (as root?): {' '.join(error.cmd)}: {text}"


@contextlib.contextmanager
def connected() -> Iterator[Link]:
    """Makes two namespaces and the cable between them, and removes them."""
    names = (f"npu-keras-{os.getpid()}-a", f"npu-keras-{os.getpid()}-b")
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVE, "sh", *names],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        link = Link(names)
        link.connect()
        yield link
    finally:
        remover.communicate(timeout=30)
        assert not any(Path("/run/netns", name).exists() for name in names)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    return done.stdout
