# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not fit together: `python -m tests.faults.misfits`.

Two ranks of the engine `collective` begin to train; one of them is late, or stops for longer than
the time-out, or is told of another number of ranks. Prints what each rank has said.
"""

import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
from launch import free_ports  # noqa: E402

import npu_keras  # noqa: E402
from npu_keras import distribute  # noqa: E402

TIMEOUT_S = 6


def train(rank, folder, *, late_s=0.0, stop_s=0.0, interrupt=False):
    """What one rank does; returns how it ended."""
    time.sleep(late_s if rank else 0.0)
    engine = distribute.engine(timeout_s=TIMEOUT_S)
    pids = engine.exchange(os.getpid())
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    manager = npu_keras.ExponentialUpdateLossScaleManager(8.0, 1, 1, decr_ratio=0.5)
    optimizer = npu_keras.NPUOptimizer(
        keras.optimizers.SGD(0.01),
        manager,
        is_distributed=True,
        is_loss_scale=True,
        aggregation=npu_keras.GradientAggregation(timeout_s=TIMEOUT_S),
    )
    model.compile(optimizer, "mse", jit_compile=False)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3 and stop_s and rank:
                _wake_later(os.getpid(), stop_s)
                os.kill(os.getpid(), signal.SIGSTOP)
            if batch == 3 and interrupt and rank == 0:
                for pid in pids:  # as a terminal does, for all of its processes
                    os.kill(pid, signal.SIGINT)

    logger = npu_keras.callbacks.LossScaleLogger(1, f"{folder}/events.jsonl", verbose=0)
    x = np.ones((64, 2), "float32")
    model.fit(x, x[:, :1], 1, shuffle=False, verbose=0, callbacks=[logger, Stop()])
    return f"trained, {model.get_weights()[0].ravel().tolist()}"


def _wake_later(pid, seconds):
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)


def ranks(folder, sizes=(2, 2), absent=(), **settings):
    """Runs the ranks; returns the last words of each and the seconds it took."""
    ports = free_ports(max(sizes))
    since, pids = time.monotonic(), {}
    for rank in range(2):
        if rank in absent:
            continue
        pids[rank] = os.fork()
        if pids[rank] == 0:
            workers = [f"127.0.0.1:{port}" for port in ports[: sizes[rank]]]
            task = {"type": "worker", "index": rank}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
            _child(rank, folder, settings)
    deadline, seconds = time.monotonic() + 60, {}
    while len(seconds) < len(pids):
        for rank, pid in pids.items():
            if rank not in seconds and os.waitpid(pid, os.WNOHANG)[0]:
                seconds[rank] = time.monotonic() - since
            elif rank not in seconds and time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return {rank: (Path(folder, f"{rank}").read_text(), seconds[rank]) for rank in pids}


def _child(rank, folder, settings):
    try:
        words = train(rank, folder, **settings)
    except BaseException as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
    Path(folder, f"{rank}").write_text(words)
    os._exit(0)


# The rank that is the second to see it may first see that the other has gone.
INTERRUPTED = r"KeyboardInterrupt|[Rr]ank [01] |task:[01]"
CASES = {
    "a rank that is 3 s late": ({"late_s": 3.0}, ["trained", "trained"]),
    "a rank that never starts": ({"absent": (1,)}, [r"Rank \[1\] did not start"]),
    "a rank that stops for longer than the time-out": (
        {"stop_s": TIMEOUT_S + 3.0},
        ["Rank 1 has been silent", "Rank 0 "],
    ),
    "a rank that knows of 3 ranks": (
        {"sizes": (2, 3)},
        ["2 workers on rank 0, 3", "3 workers on rank 1, 2"],
    ),
    "an interrupt": ({"interrupt": True}, [INTERRUPTED, INTERRUPTED]),
}


def main(names):
    for name, (settings, wanted) in CASES.items():
        if names and not any(each in name for each in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = ranks(folder, **settings)
            log = Path(folder, "events.jsonl")
            lines = log.read_text().splitlines() if log.exists() else []
            assert all(json.loads(line)["kind"] == "grow" for line in lines)
        for (rank, (words, seconds)), pattern in zip(found.items(), wanted, strict=True):
            print(f"{name}: rank {rank} after {seconds:.0f} s: {words[-300:]}", flush=True)
            assert re.search(pattern, words), (name, words)
            assert seconds < 4 * TIMEOUT_S + 20
        print(f"{name}: as expected on every rank, {len(lines)} whole lines of events")


if __name__ == "__main__":
    main(sys.argv[1:])
