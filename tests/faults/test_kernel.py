# SPDX-License-Identifier: Apache-2.0
"""A notebook's kernel that is interrupted while it trains."""

import json
import re
import time

import pytest
from jupyter_client.manager import KernelManager

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PREPARE = """
import keras
import numpy as np
import npu_keras
from npu_keras.callbacks import LossScaleLogger

x = np.ones((64, 4), "float32")
y = np.full((64, 1), 1e18, "float32")  # a scale beyond some 2**68 overflows
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
manager = npu_keras.ExponentialUpdateLossScaleManager(
    2.0**64, incr_every_n_steps=1, decr_every_n_nan_or_inf=1, decr_ratio=0.5
)
optimizer = npu_keras.NPUOptimizer(keras.optimizers.SGD(0.0), manager, is_loss_scale=True)
model.compile(optimizer, loss="mse")

class Tell(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
"""
TRAIN = """
model.fit(x, y, batch_size=8, epochs=10**6, verbose=0,
          callbacks=[LossScaleLogger(jsonl={path!r}, verbose=0), Tell()])
"""
AFTER = """
before = int(optimizer.attempted_steps)
model.fit(x, y, batch_size=8, epochs=1, verbose=0)
assert int(optimizer.attempted_steps) == before + 8
assert all(np.isfinite(w).all() for w in model.get_weights())
print("trained on:", before, int(optimizer.skipped_steps), "end", flush=True)
"""


@pytest.fixture
def kernel():
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert not manager.is_alive()


def printed(client, text, seconds=120):
    """Reads what the kernel prints until `text` is in it."""
    until, read = time.monotonic() + seconds, ""
    while text not in read:
        message = client.get_iopub_msg(timeout=until - time.monotonic())
        content = message["content"]
        read += content.get("text", "") + "".join(content.get("traceback", ()))
    return read


def run(client, code):
    """Runs code in the kernel to its end; returns the reply."""
    return client.execute_interactive(code, timeout=120, output_hook=lambda message: None)


def test_an_interrupted_fit_leaves_whole_files_and_a_kernel_that_can_train_on(kernel, tmp_path):
    manager, client = kernel
    path = tmp_path / "events.jsonl"
    assert run(client, PREPARE)["content"]["status"] == "ok"
    number = client.execute(TRAIN.format(path=str(path)))
    printed(client, "epoch 5\n")
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=60)
    assert reply["parent_header"]["msg_id"] == number
    assert reply["content"]["ename"] == "KeyboardInterrupt"

    text = path.read_text()
    assert text.endswith("\n")
    events = [json.loads(line) for line in text.splitlines()]
    attempts = [event["attempt"] for event in events if "attempt" in event]
    assert len(attempts) > 10
    assert attempts == sorted(attempts)

    client.execute(AFTER)
    read = printed(client, " end\n")
    attempted, skipped = map(int, re.search(r"trained on: (\d+) (\d+)", read).groups())
    assert attempted >= 6 * 8
    assert skipped > 0
