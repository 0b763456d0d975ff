# SPDX-License-Identifier: Apache-2.0
"""One rank fails at its sixth step: `failing_worker.py HOW RANK graph|eager SIZE`.

The others print what is raised, and how long after the failing rank did its deed.
"""

import os
import signal
import sys
import time
from pathlib import Path

import tensorflow as tf

from npu_keras import engines

HOW, WHO, MODE, SIZE = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
# The short time-out is for the steps: on a busy machine the imports alone differ by more.
Path(f"ready.{os.getpid()}").touch()
while len(list(Path().glob("ready.*"))) < SIZE:
    time.sleep(0.05)
engine = engines.find(timeout_s=5)
pids = engine.exchange(os.getpid())


def step(tensors):
    return engine.all_reduce(tensors, reduction="sum", lane=1, label="dense/kernel")


if MODE == "graph":
    step = tf.function(step, autograph=False)

for number in range(8):
    if number == 5 and engine.rank == WHO:
        if HOW == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        break
    since = time.monotonic()
    try:
        step([tf.ones(1000), tf.ones(10)])
    except (engines.EngineTimeout, tf.errors.OpError) as error:
        print("waited", time.monotonic() - since)
        print("error", " ".join(str(error).split()))
        if HOW == "stop":
            os.kill(pids[WHO], signal.SIGKILL)
        sys.exit(3)
print("done", number)
