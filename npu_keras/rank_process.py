# SPDX-License-Identifier: Apache-2.0
"""The process around one rank: starts the script, reports its end, obeys the launcher.

It exists because `mpiexec` tells neither which rank died nor lets the others finish, and because
a parent on every rank can end its script when the launcher is gone, however the launcher went.
"""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

from npu_keras import cluster

HELLO = struct.Struct("!ii")  # rank, process id of the script, which leads a process group
STATUS = struct.Struct("!i")  # exit status of the script, or minus the signal that killed it
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Runs a script as one rank until it ends.

    Args:
        argv: path of the launcher's socket, then the command of the script.

    Returns:
        0 once the launcher has closed the connection: the script's own exit status went there.
    """
    rank = cluster.find().rank
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(argv[0])
        reader, writer = os.pipe()
        script = subprocess.Popen(
            argv[1:],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            close_fds=False,  # MPI finds its process manager through an inherited descriptor
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
        os.close(writer)
        socket.send_fds(control, [HELLO.pack(rank, script.pid)], [reader])
        os.close(reader)
        threading.Thread(target=_obey, args=(control, script.pid), daemon=True).start()
        _wait_for(script.pid)
        end_group(script.pid, signal.SIGKILL)  # what the script left behind
        control.sendall(STATUS.pack(script.wait()))
        threading.Event().wait()  # `_obey` ends the process
    return 0


def end_group(leader: int, number: int) -> None:
    """Sends a signal to a process group, which may be gone already.

    Args:
        leader: process id of the group's first process.
        number: the signal.
    """
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):  # macOS: EPERM when only zombies are left
        return


def _wait_for(pid: int) -> None:
    # Not reaped yet, so that the number of its process group cannot be taken by another.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _obey(control: socket.socket, leader: int) -> None:
    while orders := control.recv(64):
        for number in orders:
            end_group(leader, number)
    end_group(leader, signal.SIGKILL)
    os._exit(0)


def _die_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
