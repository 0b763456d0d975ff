# SPDX-License-Identifier: Apache-2.0
"""Runs of TensorFlow 1.15.5's loss-scaled optimizers, repeated with ours around Keras 3 ones."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import INF, KINDS, make

from npu_keras import ExponentialUpdateLossScaleManager, FixedLossScaleManager

CASES = json.loads((Path(__file__).parent.parent / "data/optimizers.json").read_text())["cases"]


def name(case):
    clip = f"-clip{case['global_clipnorm']}" if case["global_clipnorm"] else ""
    return f"{case['optimizer']}-{next(iter(case['manager'].values())):.0f}{clip}"


class KernelSGD(keras.optimizers.SGD):
    """SGD and momentum by the kernels that TensorFlow 1 has, too."""

    def update_step(self, gradient, variable, learning_rate):
        rate = tf.cast(learning_rate, tf.float32)
        if not self.momentum:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            return
        accumulator = self.momentums[self._get_variable_index(variable)].value
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=accumulator.handle,
            lr=rate,
            grad=gradient,
            momentum=tf.constant(self.momentum),
        )


class KernelAdam(keras.optimizers.Adam):
    """Adam by the kernel that TensorFlow 1 has, too; its `epsilon` is not corrected for bias."""

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=self._power(self.beta_1),
            beta2_power=self._power(self.beta_2),
            lr=tf.cast(learning_rate, tf.float32),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _power(self, beta):
        """TensorFlow 1 multiplies step by step, in float32."""
        products = np.multiply.accumulate(np.full(50, beta, np.float32), dtype=np.float32)
        return tf.gather(tf.constant(products), self.iterations.value)


BASES = {"adam": KernelAdam, "momentum": KernelSGD, "sgd": KernelSGD}
SETTINGS = {
    "adam": {"learning_rate": 0.01, "epsilon": 1e-8},
    "momentum": {"learning_rate": 0.02, "momentum": 0.9},
    "sgd": {"learning_rate": 0.05},
}
# The kernels of momentum and SGD have not changed; that of Adam rounds differently since 1.15.
TOLERANCE = {"adam": 1e-6, "momentum": 0.0, "sgd": 0.0}


def make_manager(config):
    fixed = "loss_scale" in config
    return (FixedLossScaleManager if fixed else ExponentialUpdateLossScaleManager)(**config)


# The three constructions are compared bit by bit elsewhere, so each case takes one of them.
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_step_of_tensorflow_1(case):
    optimizer = make(
        KINDS[CASES.index(case) // 3],
        BASES[case["optimizer"]],
        make_manager(case["manager"]),
        global_clipnorm=case["global_clipnorm"],
        **SETTINGS[case["optimizer"]],
    )
    w = keras.Variable(np.float32(case["w0"]), name="w")
    b = keras.Variable(np.float32(case["b0"]), name="b")
    optimizer.build([w, b])

    @tf.function
    def step(x, y, blow_up):
        with tf.GradientTape() as tape:
            error = tf.linalg.matvec(x, w.value) + b.value - y
            loss = optimizer.scale_loss(tf.reduce_mean(error**2) * blow_up)
        gradients = tape.gradient(loss, [w.value, b.value])
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))

    xs, ys = np.float32(case["x"]), np.float32(case["y"])
    for number, want in enumerate(case["trace"]):
        bad = number in case["bad_steps"]
        step(tf.constant(xs[number]), tf.constant(ys[number]), tf.constant(INF if bad else 1.0))
        wanted = np.float32([*want["w"], want["b"]])
        atol = TOLERANCE[case["optimizer"]] * np.abs(wanted).max()
        got = [*w.numpy(), b.numpy()]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol, err_msg=f"step {number}")
        assert float(optimizer.loss_scale) == want["scale"]
        assert int(optimizer.iterations) == want["global_step"]
    assert int(optimizer.skipped_steps) == len(case["bad_steps"])
    skipped = [event.attempt - 1 for event in optimizer.journal.drain() if event.skipped]
    assert skipped == case["bad_steps"]
    assert step.experimental_get_tracing_count() == 1
