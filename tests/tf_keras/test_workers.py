# SPDX-License-Identifier: Apache-2.0
"""`fit` of tf_keras on two processes: under a strategy of several workers, and as ranks."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
from launch import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(150)]

WORKER = """
import contextlib, json, os, sys
import numpy as np
import npu_keras
engine = None if "strategy" in sys.argv else npu_keras.distribute.engine(timeout_s=60)
import tensorflow as tf
import tf_keras
from npu_keras import ExponentialUpdateLossScaleManager, callbacks
from npu_keras.tf_keras import NPUOptimizer

rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if engine is None else engine.rank
scope = contextlib.nullcontext()
if engine is None:
    scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
with scope:
    layer = tf_keras.layers.Dense(1, input_shape=(2,), kernel_initializer="ones")
    model = tf_keras.Sequential([layer])
    manager = ExponentialUpdateLossScaleManager(64.0, 100, 1, 2, 0.5)
    inner = tf_keras.optimizers.SGD(0.01)
    optimizer = NPUOptimizer(inner, manager, is_loss_scale=True, is_distributed=engine is not None)
    model.compile(optimizer, "mse")
x, y = np.ones((24, 2), "float32"), np.ones((24, 1), "float32")
x[7] = np.inf  # in the second batch, of the second process
data = tf.data.Dataset.from_tensor_slices((x, y))
if engine is None:
    data = data.batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = data.with_options(options)
else:
    data = data.batch(4).map(lambda x, y: (x[2 * rank : 2 * rank + 2], y[2 * rank : 2 * rank + 2]))
model.fit(data, verbose=0, callbacks=[callbacks.LossScaleLogger(verbose=0)])
print(json.dumps({
    "weights": [w.numpy().ravel().tolist() for w in model.weights],
    "scale": float(model.optimizer.loss_scale),
    "events": [(e.attempt, e.kind, e.rank) for e in model.optimizer.journal.drain()],
}), flush=True)
"""


@pytest.mark.parametrize(
    "engine,arguments", [("collective", ["strategy"]), ("collective", []), ("mpi", [])]
)
def test_the_second_process_s_overflow_skips_on_both(engine, arguments):
    ranks = run_ranks(WORKER, 2, engine, *arguments, timeout_s=120)
    for rank in ranks:
        assert rank.returncode == 0, rank.output
    first, second = (rank.output.strip().splitlines()[-1] for rank in ranks)
    assert first == second
    assert '"scale": 32.0, "events": [[2, "back off", 1]]' in first
    # Five steps from 1 with a learning rate of 0.01: what one process does with whole batches.
    w, b = 1.0, 0.0
    for _ in range(5):
        slope = 2 * (2 * w + b - 1)
        w, b = w - 0.01 * slope, b - 0.01 * slope
    assert first.startswith(f'{{"weights": [[{w:.5f}'[:-1])
