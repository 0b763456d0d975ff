# SPDX-License-Identifier: Apache-2.0
"""JSON messages over TCP, and the addresses that ranks tell each other."""

import json
import socket

import pytest

from npu_keras.engines.wire import connect, listen, own_addresses

pytestmark = pytest.mark.tf


@pytest.fixture
def pair():
    """A wire, and the socket at its other end."""
    with listen("127.0.0.1") as listener:
        wire = connect(["127.0.0.1"], listener.getsockname()[1], timeout_s=5.0)
        other, _ = listener.accept()
    with other:
        yield wire, other
    wire.close()


def test_messages_arrive_whole_whatever_the_pieces(pair):
    wire, other = pair
    other.sendall(b'{"rank": 1}\n{"ra')
    assert wire.receive() == [{"rank": 1}]
    other.sendall(b'nk": 2}\n')
    assert wire.receive() == [{"rank": 2}]
    assert wire.send(kind="beat", rank=0)
    assert json.loads(other.recv(100)) == {"kind": "beat", "rank": 0}


def test_the_end_of_a_connection_is_told_from_silence(pair):
    wire, other = pair
    wire._socket.settimeout(0.01)
    assert wire.receive() == []
    other.close()
    assert wire.receive() is None
    wire.close()
    assert wire.receive() is None
    assert not wire.send(kind="beat")


def test_what_is_no_message_is_refused(pair):
    wire, other = pair
    other.sendall(b"[1]\n")
    with pytest.raises(ValueError, match=r"Expected JSON objects\. Received: \[\[1\]\]"):
        wire.receive()


def test_the_first_address_that_answers_is_taken():
    with listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        wire = connect(["127.0.0.2", "127.0.0.1"], port, timeout_s=5.0)
        wire.close()
    with pytest.raises(ConnectionRefusedError):
        connect(["127.0.0.1"], port, timeout_s=5.0)
    with pytest.raises(OSError, match="no address was given"):
        connect([], port, timeout_s=5.0)


def test_a_host_that_is_not_this_machine_s_is_listened_to_on_all_addresses():
    with listen("192.0.2.1") as listener:  # reserved for documentation
        assert listener.getsockname()[0] == "0.0.0.0"
    if socket.has_ipv6:
        with listen("::1") as listener:
            assert listener.family in (socket.AF_INET6, socket.AF_INET)


def test_own_addresses_can_be_connected_to_and_stand_once():
    addresses = own_addresses()
    assert socket.gethostname() in addresses
    assert len(set(addresses)) == len(addresses)
