# SPDX-License-Identifier: Apache-2.0
"""How a rank is told what to do: over a socket, so that it does not matter who started it.

Only the standard library, and Python 3.9, for it runs in the environments of others too.
"""

import os
import socket
import time

SOCKET = "BENCHMARK_SOCKET"


def serve(ways, rank):
    """Says that this rank is ready, then does what it is told until it is told no more.

    Args:
        ways: functions of a number of steps, by name. One that returns a float answers with that
            instead of the seconds it took.
        rank: the rank.
    """
    # A socket in the file system can be reached from every network namespace.
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.environ[SOCKET])
        lines = peer.makefile("rw")
        lines.write(f"{rank}\n")
        lines.flush()
        for line in lines:
            name, steps = line.split()
            begin = time.perf_counter()
            own = ways[name](int(steps))
            taken = time.perf_counter() - begin
            lines.write(f"{own if isinstance(own, float) else taken}\n")
            lines.flush()
