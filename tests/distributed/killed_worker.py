# SPDX-License-Identifier: Apache-2.0
"""Rank 1 kills itself after step 5; rank 0 reports, and goes on alone from the last checkpoint."""

import os
import signal
import sys

import keras
import numpy as np

import npu_keras
from npu_keras import distribute

FOLDER = sys.argv[1]
engine = distribute.engine(timeout_s=10)


class KillRank1(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if engine.rank == 1 and int(self.model.optimizer.attempted_steps) == 5:
            os.kill(os.getpid(), signal.SIGKILL)


x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
manager = npu_keras.ExponentialUpdateLossScaleManager(8, 3, 1, decr_ratio=0.5)
aggregation = npu_keras.GradientAggregation(timeout_s=10)
optimizer = npu_keras.NPUOptimizer(
    keras.optimizers.Adam(0.01),
    manager,
    is_distributed=True,
    is_loss_scale=True,
    aggregation=aggregation,
)
model.compile(optimizer, loss="mse", jit_compile=False)
path = f"{FOLDER}/rank{engine.rank}.keras"
callbacks = [keras.callbacks.ModelCheckpoint(path), KillRank1()]
try:
    model.fit(x, x[:, :1], batch_size=8, epochs=9, verbose=0, callbacks=callbacks)
except Exception as error:
    print("error", str(error).replace("\n", " "), flush=True)
loaded = keras.saving.load_model(path).optimizer
print("loaded", int(loaded.attempted_steps), float(loaded.loss_scale), flush=True)
os._exit(0)
