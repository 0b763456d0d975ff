# SPDX-License-Identifier: Apache-2.0
"""How a rank is told what to do: over a socket, so that it does not matter who started it.

Only the standard library, and Python 3.9, for it runs in the environments of others too.
"""

import os
import socket
import time

SOCKET = "BENCHMARK_SOCKET"


PEAK_MEMORY = "peak_memory"


def serve(makers, rank):
    """Says that this rank is ready, then does what it is told until it is told no more.

    Beside the ways it is given it knows `PEAK_MEMORY`, the most bytes it has had in memory.

    Args:
        makers: what makes each way, by name, when it first has a turn. A way is a function of a
            number of steps; one that returns a float answers with that instead of the seconds it
            took.
        rank: the rank.
    """
    ways = {PEAK_MEMORY: _peak_memory}
    # A socket in the file system can be reached from every network namespace.
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.environ[SOCKET])
        lines = peer.makefile("rw")
        lines.write(f"{rank}\n")
        lines.flush()
        for line in lines:
            name, steps = line.split()
            if name not in ways:
                ways[name] = makers[name]()
            begin = time.perf_counter()
            own = ways[name](int(steps))
            taken = time.perf_counter() - begin
            lines.write(f"{own if isinstance(own, float) else taken}\n")
            lines.flush()


def _peak_memory(steps):
    # Not by `getrusage`: it begins with what the process that started this one had in memory.
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return float(line.split()[1]) * 1024
