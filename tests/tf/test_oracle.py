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
# `tf.linalg.matvec` rounds differently on different CPUs, and the kernel of Adam since 1.15.
TOLERANCE = 1e-6


def make_manager(config):
    fixed = "loss_scale" in config
    return (FixedLossScaleManager if fixed else ExponentialUpdateLossScaleManager)(**config)


def function_step(optimizer, variables, loss_of):
    w, b = variables

    @tf.function
    def step(x, y, factor):
        with tf.GradientTape() as tape:
            error = tf.linalg.matvec(x, w.value) + b.value - y
            loss = loss_of(tf.reduce_mean(error**2) * factor)
        gradients = tape.gradient(loss, [w.value, b.value])
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))

    return step


def weights(case, optimizer):
    made = [keras.Variable(np.float32(case[key]), name=key[0]) for key in ("w0", "b0")]
    optimizer.build(made)
    return made


# The three constructions are compared bit by bit elsewhere, so each case takes one of them.
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_step_of_tensorflow_1(case):
    base, settings = BASES[case["optimizer"]], SETTINGS[case["optimizer"]]
    settings = {**settings, "global_clipnorm": case["global_clipnorm"]}
    optimizer = make(KINDS[CASES.index(case) // 3], base, make_manager(case["manager"]), **settings)
    variables = weights(case, optimizer)
    step = function_step(optimizer, variables, optimizer.scale_loss)
    # The same on this machine without loss scaling, which powers of two do not change a bit.
    plain = base(**settings)
    plain_variables = weights(case, plain)
    plain_step = function_step(plain, plain_variables, lambda loss: loss)

    xs, ys = np.float32(case["x"]), np.float32(case["y"])
    for number, want in enumerate(case["trace"]):
        bad = number in case["bad_steps"]
        x, y = tf.constant(xs[number]), tf.constant(ys[number])
        step(x, y, tf.constant(INF if bad else 1.0))
        if not bad:
            plain_step(x, y, tf.constant(1.0))
        got, same_machine = (
            np.array([*w.numpy(), b.numpy()]) for w, b in (variables, plain_variables)
        )
        wanted = np.float32([*want["w"], want["b"]])
        atol = TOLERANCE * np.abs(wanted).max()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol, err_msg=f"step {number}")
        np.testing.assert_array_equal(got, same_machine, err_msg=f"step {number}")
        assert float(optimizer.loss_scale) == want["scale"]
        assert int(optimizer.iterations) == want["global_step"]
    assert int(optimizer.skipped_steps) == len(case["bad_steps"])
    skipped = [event.attempt - 1 for event in optimizer.journal.drain() if event.skipped]
    assert skipped == case["bad_steps"]
    assert step.experimental_get_tracing_count() == 1
