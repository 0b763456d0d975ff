# SPDX-License-Identifier: Apache-2.0
"""BERT-Large for TensorFlow 2: scaled and unscaled by hand, reduced, clipped, accumulated."""

import npu_device as npu
import tensorflow as tf
from npu_device.train.optimizer import NpuLossScaleOptimizer

npu.global_options().precision_mode = "allow_mix_precision"
npu.global_options().profiling_config.enable_profiling = False
npu.open().as_default()


def configure_optimizer(optimizer, loss_scale):
    if isinstance(loss_scale, (int, float)):
        return NpuLossScaleOptimizer(optimizer, dynamic=False, initial_scale=loss_scale)
    if loss_scale == "dynamic":
        return NpuLossScaleOptimizer(optimizer)
    raise RuntimeError(f"unknown loss scale {loss_scale}")


schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([100], [0.5, 0.1])
optimizer = configure_optimizer(tf.keras.optimizers.SGD(schedule), "dynamic")
w = tf.Variable([1.0, 1.0])
unused = tf.Variable(1.0)
accumulators = [tf.Variable(tf.zeros_like(v), trainable=False) for v in (w, unused)]


@tf.function
def train_step(x):
    for accumulator in accumulators:
        accumulator.assign(tf.zeros_like(accumulator))
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = (3.0 * w[0] + 4.0 * w[1]) * x
        with tape:
            scaled = optimizer.get_scaled_loss(loss)
        grads = tape.gradient(scaled, [w, unused])
        grads = optimizer.get_unscaled_gradients(grads)
        grads = npu.distribute.all_reduce(grads, reduction="mean")
        present, _ = tf.clip_by_global_norm(grads, 1.0)
        for gradient, accumulator in zip(present, accumulators):
            if gradient is not None:
                accumulator.assign_add(tf.cast(gradient, tf.float32) / 2)
    optimizer.apply_gradients(
        zip(accumulators, [w, unused]), experimental_aggregate_gradients=False
    )


finite = []
for value in (1.0, float("inf"), 1.0):
    train_step(tf.constant(value))
    finite.append(bool(optimizer.last_step_finite.numpy()))
refused = 0
for arguments in ({"dynamic": False}, {"dynamic": False, "dynamic_growth_steps": 5}):
    try:
        NpuLossScaleOptimizer(tf.keras.optimizers.SGD(0.5), **arguments)
    except ValueError:
        refused += 1
RESULT = {
    "w": [round(v, 5) for v in w.numpy().tolist()],
    "finite": finite,
    "loss_scale": float(optimizer.loss_scale.numpy()),
    "counter": int(optimizer.dynamic_counter.numpy()),
    "iterations": int(optimizer.iterations.numpy()),
    "fixed": float(configure_optimizer(tf.keras.optimizers.SGD(0.5), 1024).loss_scale.numpy()),
    "is": isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer),
    "rate": float(optimizer.inner_optimizer.learning_rate(3)),
    "refused": refused,
}
