# SPDX-License-Identifier: Apache-2.0
"""Ranks with other data, of which only one would stop by itself."""

import json

import keras
import numpy as np

import npu_keras
from npu_keras import distribute
from npu_keras.callbacks import ConsistencyCheck, MetricAverage, OverflowGuard

engine = distribute.engine(timeout_s=60)
RANK = engine.rank


class OwnTrend(keras.callbacks.Callback):
    """The validation gets better on rank 1 and worse on rank 0."""

    def on_epoch_end(self, epoch, logs=None):
        logs["val_trend"] = [1.0 + epoch, 1.0 - epoch / 10][RANK]
        logs["agreed"] = 0.1


def constant(rows, target):
    return np.zeros((rows, 2), "float32"), np.full((rows, 1), target, "float32")


model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
optimizer = npu_keras.NPUDistributedOptimizer(keras.optimizers.SGD(0.0))
model.compile(optimizer, loss="mse", jit_compile=False)
history = model.fit(
    *constant([8, 24][RANK], 1 + RANK),
    batch_size=[4, 12][RANK],
    epochs=9,
    verbose=0,
    validation_data=constant([100, 10][RANK], 1 + RANK),
    callbacks=[
        OwnTrend(),
        MetricAverage(),
        ConsistencyCheck(),
        keras.callbacks.EarlyStopping("val_trend", mode="min", patience=3),
    ],
).history
print("history", json.dumps(history), flush=True)

optimizer.learning_rate = 1.0
plateau = keras.callbacks.ReduceLROnPlateau("val_trend", mode="min", factor=0.5, patience=1)
x, y = constant(4, 0)
model.fit(x, y, epochs=4, verbose=0, callbacks=[OwnTrend(), MetricAverage(), plateau])
print("rate", float(optimizer.learning_rate), flush=True)

try:
    metrics = MetricAverage()
    metrics.set_model(model)
    metrics.on_epoch_end(0, {"loss": 1.0} if RANK else {"loss": 1.0, "accuracy": 0.5})
except RuntimeError as error:
    print("error", error, flush=True)

manager = npu_keras.ExponentialUpdateLossScaleManager(2.0**15, 1000, 1, 2, 0.5)
optimizer = npu_keras.NPUOptimizer(
    keras.optimizers.SGD(0.1), manager, is_distributed=True, is_loss_scale=True
)
model.compile(optimizer, loss="mse", jit_compile=False)
x, y = constant(40, 0)
x[5:] += np.float32([0, np.nan][RANK])
guard = OverflowGuard(max_consecutive_skips=4, action="stop")
model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[guard])
print("stopped", int(optimizer.attempted_steps), int(optimizer.skipped_steps), flush=True)

check = ConsistencyCheck()
check.set_model(model)
check.on_epoch_end(0)
try:
    model.layers[0].bias.assign([float(RANK)])
    check.on_epoch_end(1)
except RuntimeError as error:
    print("apart", error, flush=True)
