# SPDX-License-Identifier: Apache-2.0
"""What each rank of two hosts does: `worker.py TIMEOUT_S [endless]`."""

import hashlib
import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import npu_keras

TIMEOUT_S, ENDLESS = float(sys.argv[1]), "endless" in sys.argv
STEPS, BATCH, WIDTH = 10, 8, 512

engine = npu_keras.distribute.engine(timeout_s=TIMEOUT_S)
assert (engine.name, engine.size) == ("collective", 2)
keras.utils.set_random_seed(engine.rank)
model = keras.Sequential(
    [keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, "tanh"), keras.layers.Dense(1)]
)
manager = npu_keras.ExponentialUpdateLossScaleManager(
    2.0**10, incr_every_n_steps=5, decr_every_n_nan_or_inf=1, decr_ratio=0.5
)
optimizer = npu_keras.NPUOptimizer(
    keras.optimizers.AdamW(1e-3), manager, is_distributed=True, is_loss_scale=True
)
model.compile(optimizer, loss="mse", jit_compile=False)
x = np.random.default_rng(engine.rank).standard_normal((STEPS * BATCH, WIDTH)).astype("float32")
y = x[:, :1].copy()
if engine.rank == 1:
    y[3 * BATCH] = 1e38  # times the loss scale beyond float32


class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("step", batch + 1)
        self.since = time.monotonic()


steps = Steps()
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
data = data.repeat() if ENDLESS else data
since = time.monotonic()
try:
    model.fit(data, steps_per_epoch=1_000_000 if ENDLESS else STEPS, verbose=0, shuffle=False,
              callbacks=[steps])  # fmt: skip
except (npu_keras.engines.EngineTimeout, tf.errors.OpError):
    print("waited", time.monotonic() - steps.since)
    raise
content = b"".join(np.asarray(v).tobytes() for v in [*model.weights, *optimizer.variables])
report = {
    "sha256": hashlib.sha256(content).hexdigest(),
    "skipped": [[e.attempt, e.rank] for e in optimizer.journal.drain() if e.skipped],
    "scale": float(optimizer.loss_scale),
    "steps": STEPS,
    "bytes": sum(4 * v.shape.num_elements() for v in map(tf.convert_to_tensor, model.weights)),
    "seconds": round(time.monotonic() - since, 2),
}
print(json.dumps(report))
