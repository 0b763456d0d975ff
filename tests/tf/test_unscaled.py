# SPDX-License-Identifier: Apache-2.0
"""Optimizers that `compile` does not know of are not left without loss scaling in silence."""

import warnings

import keras
import numpy as np
import pytest
from scaled import KINDS, make, small_model

from npu_keras import NPUOptimizer, unscaled_optimizers
from npu_keras.callbacks import LossScaleLogger


class GAN(keras.Model):
    def __init__(self, policy):
        super().__init__()
        self.net = keras.layers.Dense(1, dtype=policy)

    def call(self, x):
        return self.net(x)

    def compile(self, critic, *others):
        super().compile()
        self.critic_optimizer = critic
        self.others = list(others)


def gan(policy, *optimizers):
    model = GAN(policy)
    model.compile(*optimizers)
    model.optimizer = None  # `compile` makes one that is not used
    return model


def test_one_warning_for_each():
    model = gan("mixed_float16", keras.optimizers.SGD(), make("mixin", learning_rate=0.1))
    model.others.append(NPUOptimizer(keras.optimizers.SGD()))
    with pytest.warns(UserWarning, match="does not scale the loss, but") as caught:
        assert unscaled_optimizers(model) == ["critic_optimizer", "others[1]"]
    assert [str(warning.message).split("`")[1] for warning in caught] == [
        "critic_optimizer",
        "others[1]",
    ]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("kind", KINDS)
def test_silence_when_all_scale(kind):
    keras_scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    static = keras.optimizers.SGD(loss_scale_factor=64.0)
    model = gan("mixed_float16", make(kind, learning_rate=0.1), keras_scaler, static)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert unscaled_optimizers(model) == []


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_silence_when_nothing_computes_in_float16(policy):
    assert unscaled_optimizers(gan(policy, keras.optimizers.SGD())) == []


def test_the_logger_asks():
    model = small_model("mixed_float16")
    model.compile(make("NPUOptimizer", learning_rate=0.1), loss="mse", jit_compile=False)
    model.second_optimizer = keras.optimizers.SGD()
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    with pytest.warns(UserWarning, match="`second_optimizer` of Sequential does not scale"):
        model.fit(x, y, verbose=0, callbacks=[LossScaleLogger(verbose=0)])
