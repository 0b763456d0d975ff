# SPDX-License-Identifier: Apache-2.0
"""What a rank knows of the others while it waits for them."""

import json
import secrets
import select
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from npu_keras.engines import wire
from npu_keras.engines.base import EngineTimeout
from npu_keras.engines.hub import Hub

_LONGEST_GRACE_S = 2.0  # a rank that has left may have done its part of what we wait for
_SILENT_PERIODS = 4


class _Member(NamedTuple):
    state: str = "here"
    started: int = 0
    silence_s: float = 0.0
    reason: str = ""


class Peers:
    """The other ranks, watched through small TCP messages that run beside the tensors.

    Each rank sends a beat to rank 0 a few times per time-out, with the number of collectives it
    has started; rank 0 tells everyone what it knows. A rank that dies is noticed by its closed
    connection, one that stalls by its silence, one that leaves early says so itself.

    Args:
        rank: int, this process.
        size: int, number of processes.
        timeout_s: float, the longest wait, in seconds.
        share: gives every rank the text that rank 0 passes in; the others pass `""`.
        hosts: addresses of rank 0 that the others may try; rank 0 listens on the first when it
            is the only one, else on all its addresses.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        timeout_s: float,
        share: Callable[[str], str],
        hosts: list[str],
    ) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.count = 0
        self.failure: str | None = None
        self._period_s = min(1.0, timeout_s / 10)
        self._grace_s = min(_LONGEST_GRACE_S, timeout_s / 2)
        self._changed = threading.Condition()
        self._members = [_Member() for _ in range(size)]
        self._offered: dict[str, list[int]] = {}
        self._answers: dict[str, list[Any]] = {}
        self._exchanges = 0
        self._gone_since: float | None = None
        self._heard = time.monotonic()
        self._closed = False
        self._connect(share, hosts)

    def _connect(self, share: Callable[[str], str], hosts: list[str]) -> None:
        text = ""
        if self.rank == 0:
            listener = wire.listen(hosts[0] if len(hosts) == 1 else "")
            secret = secrets.token_hex(16)
            Hub(listener, self.size, secret, self._period_s).start()
            text = json.dumps([hosts, listener.getsockname()[1], secret])
        addresses, port, secret = json.loads(share(text))
        self._wire = wire.connect(addresses, port, min(self.timeout_s, 10.0))
        self._wire.send(kind="hello", rank=self.rank, secret=secret)
        self._thread = threading.Thread(target=self._watch, name="npu_keras-peers", daemon=True)
        self._thread.start()
        self.exchange(None, "start of the engine")

    def exchange(self, value: Any, label: str) -> list[Any]:
        """Gives every rank the values of all ranks, in rank order.

        Raises:
            EngineTimeout: names the ranks that did not take part within the time-out.
        """
        self.raise_if_failed()
        self._exchanges += 1
        key = f"{self._exchanges}:{label}"
        since = time.monotonic()
        self._wire.send(kind="offer", key=key, value=value, count=self.count)
        with self._changed:
            while key not in self._answers:
                self.check(label, since, key)
                self._changed.wait(self._period_s / 4)
            return self._answers.pop(key)

    def check(self, label: str, since: float, key: str | None = None) -> None:
        """Raises an EngineTimeout if waiting any longer is of no use; cheap.

        Args:
            label: str, what is being waited for.
            since: float, `time.monotonic()` at which the wait began.
            key: str or None, the exchange that is waited for.
        """
        now = time.monotonic()
        if self._gone_since is not None and now - max(self._gone_since, since) > self._grace_s:
            self._fail(f"{self._gone()} Waiting for {label}.")
        if now - since > self.timeout_s:
            self._fail(f"{self._late(key)} Waited {self.timeout_s:g} s for {label}.")
        self.raise_if_failed()

    def raise_if_lost(self, label: str) -> None:
        """Raises an EngineTimeout if a rank has died, before what needs all of them begins.

        Args:
            label: str, what is about to begin.
        """
        if any(member.state == "lost" for member in self._members):
            self._fail(f"{self._gone()} Before {label}.")
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raises the EngineTimeout of an earlier call again."""
        if self.failure is not None:
            raise EngineTimeout(self.failure)

    def explain(self, label: str, error: str) -> str:
        """Finds out which rank is to blame for an error of the transport; returns a message."""
        deadline = time.monotonic() + self._grace_s
        with self._changed:
            while not self._gone_since and not self.failure and time.monotonic() < deadline:
                self._changed.wait(self._period_s / 4)
        reason = self._gone() if self._gone_since else self._late(None)
        self.failure = self.failure or f"{self._prefix()} {reason} During {label}: {error}"
        return self.failure

    def leave(self, longest_s: float) -> bool:
        """Says that this rank takes part no more, waits for the others to say so, disconnects.

        Args:
            longest_s: float, the longest wait, in seconds.

        Returns:
            Whether all ranks left unharmed, and all know it.
        """
        reason = self.failure or ""
        self._wire.send(kind="leave", count=self.count, reason=reason)
        unharmed = self._all_left(self._grace_s if reason else longest_s) and not reason
        try:
            return unharmed and all(self.exchange(True, "end"))
        except EngineTimeout:  # one has given up waiting for us, or has failed
            return False
        finally:
            self.close()

    def close(self) -> None:
        """Disconnects, without a word to the others."""
        self._closed = True
        self._thread.join()
        self._wire.close()

    def _all_left(self, longest_s: float) -> bool:
        deadline = time.monotonic() + longest_s
        with self._changed:
            while any(m.state == "here" for m in self._members) and time.monotonic() < deadline:
                self._changed.wait(self._period_s / 4)
            return all(member.state == "left" for member in self._members)

    def _fail(self, message: str) -> None:
        self.failure = f"{self._prefix()} {message}"

    def _prefix(self) -> str:
        return f"Rank {self.rank} of {self.size} gives up:"

    def _gone(self) -> str:
        members = [(r, m) for r, m in enumerate(self._members) if m.state != "here"]
        causes = [(r, m) for r, m in members if m.state == "lost" or not m.reason] or members
        return " ".join(_describe(rank, member) for rank, member in causes)

    def _late(self, key: str | None) -> str:
        silence = time.monotonic() - self._heard
        if silence > _SILENT_PERIODS * self._period_s:
            return f"Rank 0 has been silent for {silence:.1f} s."
        if key is not None:
            here = self._offered.get(key, [])
            absent = ", ".join(str(rank) for rank in range(self.size) if rank not in here)
            return f"Missing: rank {absent}."
        silent = [
            f"Rank {rank} has been silent for {member.silence_s:.1f} s."
            for rank, member in enumerate(self._members)
            if member.silence_s > _SILENT_PERIODS * self._period_s
        ]
        behind = [
            f"Rank {rank} has started {member.started} collectives, this rank {self.count}."
            for rank, member in enumerate(self._members)
            if member.started < self.count and rank != self.rank
        ]
        return " ".join(silent or behind) or "No rank is known to be missing."

    def _watch(self) -> None:
        next_beat = 0.0
        while not self._closed:
            if time.monotonic() >= next_beat:
                self._wire.send(kind="beat", count=self.count)
                next_beat = time.monotonic() + self._period_s
            ready, _, _ = select.select([self._wire], [], [], self._period_s / 2)
            messages = self._wire.receive() if ready else []
            with self._changed:
                if messages is None:
                    self._lose_rank_0()
                    return
                for message in messages:
                    self._take(message)
                self._changed.notify_all()

    def _lose_rank_0(self) -> None:
        if self._members[0].state == "here":
            self._members[0] = self._members[0]._replace(state="lost")
        self._gone_since = self._gone_since or time.monotonic()
        self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        if message["kind"] == "answer":
            self._answers[message["key"]] = message["values"]
            return
        self._members = [_Member(*member) for member in message["members"]]
        self._offered = message["offered"]
        others = (m.state for r, m in enumerate(self._members) if r != self.rank)
        if self._gone_since is None and any(state in ("left", "lost") for state in others):
            self._gone_since = time.monotonic()


def _describe(rank: int, member: _Member) -> str:
    if member.state == "left":
        why = f", because: {member.reason}" if member.reason else ""
        return f"Rank {rank} has left after {member.started} collectives{why}."
    if member.state == "lost":
        return f"Rank {rank} has died."
    return f"Rank {rank} has not started."
