# SPDX-License-Identifier: Apache-2.0
"""What ranks learn of each other; the ranks are threads here."""

import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from npu_keras.engines import EngineTimeout, wire
from npu_keras.engines.peers import Peers


@pytest.fixture
def start():
    """Starts the peers of some ranks; returns them in rank order."""
    started = []

    def start(size, timeout_s=2.0):
        texts = queue.Queue()

        def share(text):
            if text:
                for _ in range(size - 1):
                    texts.put(text)
            return text or texts.get(timeout=10)

        def one(rank):
            return Peers(rank, size, timeout_s, share, ["127.0.0.1"])

        with ThreadPoolExecutor(size) as pool:
            started.extend(pool.map(one, range(size)))
        return started

    yield start
    for peers in started:
        peers.close()


def all_at_once(calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def drop(peers):
    """Closes the connection of a rank, as its death would."""
    peers._wire._socket.shutdown(socket.SHUT_RDWR)


def check_until_raised(peers, since):
    while True:
        peers.check("x", since)
        time.sleep(0.01)


def test_exchange_keeps_the_order_of_ranks(start):
    peers = start(3)
    values = [0, "one", {"two": [2]}]
    for _ in range(3):
        calls = [lambda p=p, v=v: p.exchange(v, "x") for p, v in zip(peers, values, strict=True)]
        assert all_at_once(calls) == [values] * 3


def test_a_rank_that_does_not_come_is_named(start):
    peers = start(3, timeout_s=1.0)
    since = time.monotonic()
    with pytest.raises(EngineTimeout, match=r"Missing: rank 1, 2. Waited 1 s for barrier x"):
        peers[0].exchange(None, "barrier x")
    assert 1.0 <= time.monotonic() - since < 2.0
    with pytest.raises(EngineTimeout, match="Missing: rank 1, 2"):
        peers[0].exchange(None, "later")


def test_a_lost_rank_is_named_by_all_others(start):
    peers = start(3)
    drop(peers[1])
    for rank in (0, 2):
        with pytest.raises(EngineTimeout, match=rf"Rank {rank} of 3 gives up: Rank 1 has died"):
            peers[rank].exchange(None, "x")


def test_nothing_is_begun_without_a_rank_that_is_known_to_be_lost(start):
    peers = start(2)
    peers[0].raise_if_lost("all_reduce of x")
    drop(peers[1])
    with pytest.raises(EngineTimeout, match="Rank 1 has died. Waiting for x"):
        check_until_raised(peers[0], time.monotonic())
    peers[0].failure = None
    with pytest.raises(EngineTimeout, match="Rank 1 has died. Before all_reduce of x"):
        peers[0].raise_if_lost("all_reduce of x")


def test_a_lost_rank_0_is_named(start):
    peers = start(2)
    drop(peers[0])
    with pytest.raises(EngineTimeout, match="Rank 1 of 2 gives up: Rank 0 has died"):
        peers[1].exchange(None, "x")


def test_a_rank_that_has_left_is_named_with_its_count_and_its_reason(start):
    peers = start(2, timeout_s=4.0)
    peers[1].count = 7
    peers[1].failure = "the disk is full"
    leaving = threading.Thread(target=peers[1].leave, args=(1.0,))
    leaving.start()
    since = time.monotonic()
    with pytest.raises(EngineTimeout, match="has left after 7 collectives, because: the disk"):
        check_until_raised(peers[0], since)
    leaving.join()
    assert time.monotonic() - since < 3.5


def test_a_rank_that_is_behind_is_named_at_the_time_out(start):
    peers = start(2, timeout_s=1.0)
    peers[0].count, peers[1].count = 5, 4
    time.sleep(0.5)
    peers[0].check("x", time.monotonic())
    with pytest.raises(EngineTimeout, match="Rank 1 has started 4 collectives, this rank 5"):
        peers[0].check("x", time.monotonic() - 1.1)


def test_a_silent_rank_is_named_at_the_time_out(start, monkeypatch):
    peers = start(2, timeout_s=1.0)
    monkeypatch.setattr(peers[1]._wire, "send", lambda **_: True)
    time.sleep(1.0)
    with pytest.raises(EngineTimeout, match=r"Rank 1 has been silent for \d\.\d s"):
        peers[0].check("x", time.monotonic() - 1.1)


def test_leaving_together_is_unharmed(start):
    peers = start(3)
    assert all_at_once([lambda p=p: p.leave(5.0) for p in peers]) == [True] * 3


def test_leaving_after_a_failure_is_not(start):
    peers = start(2)
    peers[0].failure = "x"
    assert all_at_once([lambda p=p: p.leave(5.0) for p in peers]) == [False] * 2


def test_a_stranger_is_turned_away(start):
    peers = start(2)
    with socket.create_connection(peers[0]._wire._socket.getpeername()) as stranger:
        stranger.settimeout(5)
        stranger.sendall(b'{"kind":"hello","rank":1,"secret":"guess"}\n')
        assert stranger.recv(10) == b""
    with socket.create_connection(peers[0]._wire._socket.getpeername()) as stranger:
        stranger.settimeout(5)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(10) == b""
    assert all_at_once([lambda p=p: p.exchange(p.rank, "x") for p in peers]) == [[0, 1]] * 2


def test_connect_tries_all_addresses():
    with wire.listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        link = wire.connect(["127.0.0.2", "127.0.0.1"], port, 5.0)
        accepted, _ = listener.accept()
        with accepted:
            link.send(kind="x")
            assert accepted.recv(100) == b'{"kind":"x"}\n'
        link.close()
    with pytest.raises(OSError, match="refused"):
        wire.connect(["127.0.0.1"], port, 5.0)
