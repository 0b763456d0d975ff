# SPDX-License-Identifier: Apache-2.0
"""Rank 0's meeting point: who is here, who has left, who is lost, and values to exchange."""

import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from npu_keras.engines.wire import Wire

_SILENT_PERIODS = 4


@dataclass
class _Member:
    wire: Wire | None = None
    state: str = "absent"
    count: int = 0
    reason: str = ""
    heard: float = field(default_factory=time.monotonic)

    def silence_s(self) -> float:
        return time.monotonic() - self.heard

    def report(self) -> list[Any]:
        return [self.state, self.count, round(self.silence_s(), 3), self.reason]


class Hub:
    """Serves every rank over one connection each, until all have gone.

    Args:
        listener: listening socket; closed when everyone is here.
        size: int, number of ranks.
        secret: str, what a connection must say first.
        period_s: float, seconds between two reports to the ranks.
    """

    def __init__(self, listener: socket.socket, size: int, secret: str, period_s: float) -> None:
        self._listener = listener
        self._members = [_Member() for _ in range(size)]
        self._secret = secret
        self._period_s = period_s
        self._offers: dict[str, dict[int, Any]] = {}
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Serves in a thread of its own, until every rank has come and gone."""
        # Not a kind of `Thread`, whose private names change: `_handle` is one since Python 3.13.
        threading.Thread(target=self._run, name="npu_keras-hub", daemon=True).start()

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        next_report = 0.0
        while any(member.state in ("absent", "here") or member.wire for member in self._members):
            for key, _ in self._selector.select(self._period_s):
                if self._serve(key):
                    next_report = 0.0
            if time.monotonic() >= next_report:
                self._report()
                next_report = time.monotonic() + self._period_s
        self._selector.close()
        self._listener.close()

    def _serve(self, key: selectors.SelectorKey) -> bool:
        """Handles one ready socket; returns whether the ranks should know at once."""
        if key.data is None:
            connection, _ = self._listener.accept()
            wire = Wire(connection)
            self._selector.register(wire, selectors.EVENT_READ, wire)
            return False
        wire = key.data
        rank = self._rank_of(wire)
        try:
            messages = wire.receive()
        except ValueError:  # not one of ours
            messages = None
        if messages is None:
            self._selector.unregister(wire)
            wire.close()
            return rank is not None and self._lose(rank)
        urgent = [self._handle(wire, message) for message in messages]
        return any(urgent)

    def _rank_of(self, wire: Wire) -> int | None:
        return next((r for r, member in enumerate(self._members) if member.wire is wire), None)

    def _lose(self, rank: int) -> bool:
        member = self._members[rank]
        member.wire = None
        if member.state == "here":
            member.state = "lost"
        return True

    def _handle(self, wire: Wire, message: dict[str, Any]) -> bool:
        kind, rank = message.get("kind"), self._rank_of(wire)
        if rank is None:
            return self._welcome(wire, message)
        member = self._members[rank]
        member.heard = time.monotonic()
        member.count = message.get("count", member.count)
        if kind == "offer":
            self._collect(rank, message["key"], message["value"])
        elif kind == "leave":
            member.state, member.reason = "left", message["reason"]
            return True
        return False

    def _welcome(self, wire: Wire, message: dict[str, Any]) -> bool:
        if message.get("kind") != "hello" or message.get("secret") != self._secret:
            self._selector.unregister(wire)
            wire.close()
            return False
        member = self._members[message["rank"]]
        member.wire, member.state, member.heard = wire, "here", time.monotonic()
        return False

    def _collect(self, rank: int, key: str, value: Any) -> None:
        offers = self._offers.setdefault(key, {})
        offers[rank] = value
        if len(offers) == len(self._members):
            del self._offers[key]
            values = [offers[r] for r in range(len(self._members))]
            # Rank 0 last: its answer may start MPI_Finalize, which stops the threads of its
            # process, this one included.
            for member in reversed(self._members):
                if member.wire:
                    member.wire.send(kind="answer", key=key, values=values)

    def _report(self) -> None:
        members = [member.report() for member in self._members]
        offered = {key: sorted(offers) for key, offers in self._offers.items()}
        for member in self._members:
            # A silent rank reads nothing: its full buffer must not hold up the others.
            if member.wire and member.silence_s() < _SILENT_PERIODS * self._period_s:
                member.wire.send(kind="report", members=members, offered=offered)
