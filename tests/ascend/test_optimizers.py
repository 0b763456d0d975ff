# SPDX-License-Identifier: Apache-2.0
"""The optimizers and settings under the adapter's names, away from scripts."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import npu_keras
import npu_keras.tf_keras
from npu_keras.ascend.collectives import all_reduce, check_fusion
from npu_keras.ascend.device import set_device_sat_mode
from npu_keras.ascend.hooks import npu_callbacks_append, npu_hooks_append
from npu_keras.ascend.optimizers import (
    NPUDistributedOptimizer,
    NPULossScaleOptimizer,
    NPUOptimizer,
)
from npu_keras.ascend.run_config import NPURunConfig
from npu_keras.ascend.tf2_optimizer import NpuLossScaleOptimizer
from npu_keras.ascend.wrapping import (
    npu_distributed_keras_optimizer_wrapper,
    npu_distributed_optimizer_wrapper,
)
from npu_keras.products import set_product

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def clean_slate():
    yield
    set_product(None)
    NPURunConfig.clear()


def manager():
    return npu_keras.FixedLossScaleManager(8)


@pytest.mark.parametrize(
    "opt, home",
    [
        (lambda: tf.compat.v1.train.AdamOptimizer(), "npu_keras.ascend.optimizers"),
        (lambda: tf_keras.optimizers.Adam(), "npu_keras.tf_keras.optimizers"),
        (lambda: tf_keras.optimizers.legacy.Adam(), "npu_keras.tf_keras.optimizers"),
        (lambda: npu_keras.optimizers.keras.optimizers.Adam(), "npu_keras.optimizers"),
    ],
)
def test_each_kind_of_optimizer_gets_its_flavour(opt, home):
    made = [
        NPULossScaleOptimizer(opt(), manager(), is_distributed=False),
        NPUOptimizer(opt(), manager(), is_loss_scale=True),
        NPUDistributedOptimizer(opt()),
    ]
    assert [type(each).__module__ for each in made] == [home] * 3
    assert float(made[0].loss_scale) == float(made[1].loss_scale) == 8.0


def test_every_argument_has_the_name_and_default_of_the_adapter():
    inner = tf.compat.v1.train.AdamOptimizer
    exponential = npu_keras.ExponentialUpdateLossScaleManager(
        init_loss_scale=2**10,
        incr_every_n_steps=100,
        decr_every_n_nan_or_inf=3,
        incr_ratio=4,
        decr_ratio=0.25,
    )
    fixed = npu_keras.FixedLossScaleManager(loss_scale=16.0, enable_overflow_check=False)
    assert not fixed.get_enable_overflow_check()
    both = NPUOptimizer(
        opt=inner(),
        loss_scale_manager=exponential,
        is_distributed=True,
        is_loss_scale=True,
        is_tailing_optimization=True,
        name="mine",
    )
    assert (float(both.loss_scale), both.get_name(), both.loss_scale_manager) == (
        *(1024.0, "mine"),
        exponential,
    )
    scaled = NPULossScaleOptimizer(opt=inner(), loss_scale_manager=fixed, is_distributed=True)
    assert float(scaled.loss_scale) == 16.0
    keras = NpuLossScaleOptimizer(
        inner_optimizer=tf_keras.optimizers.SGD(),
        dynamic=True,
        initial_scale=8,
        dynamic_growth_steps=2,
    )
    assert (float(keras.initial_scale), keras.dynamic_growth_steps) == (8.0, 2)
    summed = NPUDistributedOptimizer(optimizer=inner(), is_weight_update_sharding=False, name=None)
    assert summed.get_name() == "DistributedAdamOptimizer"
    defaults = npu_keras.ExponentialUpdateLossScaleManager(2**32, 1000).get_config()
    assert [defaults[n] for n in ("decr_every_n_nan_or_inf", "incr_ratio", "decr_ratio")] == [
        *(2, 2),
        np.float32(0.8),
    ]


def test_the_overflow_mode_is_that_of_the_product():
    inner = tf.compat.v1.train.AdamOptimizer
    assert NPULossScaleOptimizer(inner(), manager()).overflow_mode == "inf_nan"
    set_product("Atlas training series")
    assert NPULossScaleOptimizer(inner(), manager()).overflow_mode == "saturation"
    assert NPUOptimizer(inner(), manager(), is_loss_scale=True).overflow_mode == "saturation"
    assert NpuLossScaleOptimizer(tf_keras.optimizers.SGD()).overflow_mode == "saturation"


def test_tf2_optimizer_goes_through_its_config():
    original = NpuLossScaleOptimizer(tf_keras.optimizers.SGD(0.25), True, 64.0, 7)
    copy = tf_keras.optimizers.deserialize(tf_keras.optimizers.serialize(original))
    assert type(copy) is NpuLossScaleOptimizer
    assert copy.get_config() == original.get_config()
    assert (copy.initial_scale, copy.dynamic_growth_steps, copy.dynamic) == (64.0, 7, True)
    fixed = NpuLossScaleOptimizer.from_config(
        NpuLossScaleOptimizer(tf_keras.optimizers.SGD(), False, 4).get_config()
    )
    assert (float(fixed.loss_scale), fixed.dynamic) == (4.0, False)


def test_tf2_optimizer_halves_to_1_and_counts_skipped_steps():
    variable = tf.Variable(1.0)
    optimizer = NpuLossScaleOptimizer(tf_keras.optimizers.SGD(0.5), initial_scale=4)
    seen = []
    for value in (float("inf"), float("inf"), float("nan"), 1.0):
        optimizer.minimize(lambda value=value: variable * value, [variable])
        seen.append((float(optimizer.loss_scale), bool(optimizer.last_step_finite)))
    assert seen == [(2.0, False), (1.0, False), (1.0, False), (1.0, True)]
    assert int(optimizer.iterations) == 4
    assert float(variable) == 0.5


@pytest.mark.parametrize(
    "wrap", [npu_distributed_optimizer_wrapper, npu_distributed_keras_optimizer_wrapper]
)
def test_wrapping_twice_is_refused(wrap):
    once = wrap(NpuLossScaleOptimizer(tf_keras.optimizers.SGD()))
    assert type(once) is NpuLossScaleOptimizer
    with pytest.raises(TypeError, match="aggregates gradients already"):
        wrap(once)
    with pytest.raises(TypeError, match="aggregates gradients already"):
        wrap(wrap(tf_keras.optimizers.SGD()))


def test_settings_that_the_adapters_refuse():
    with pytest.raises(ValueError, match="`fusion` must be one of"):
        check_fusion(1, 5)
    with pytest.raises(ValueError, match="`fusion` must be one of"):
        all_reduce(1.0, fusion=3)
    with pytest.raises(ValueError, match="`reduction` must be one of"):
        all_reduce(1.0, "median")
    with pytest.raises(ValueError, match="one of"):
        npu_distributed_keras_optimizer_wrapper(tf_keras.optimizers.SGD(), "max")
    with pytest.raises(ValueError, match=r"0 \(saturation\) or 1.*mode=2"):
        set_device_sat_mode(2)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
        lambda: keras.optimizers.SGD(0.1),
        lambda: tf_keras.optimizers.SGD(0.1),
    ],
)
def test_a_sum_is_a_sum_for_every_kind_of_optimizer(optimizer):
    wrapped = npu_distributed_keras_optimizer_wrapper(optimizer(), "sum")
    assert wrapped._aggregation.reduction == "sum"


def test_run_config_keeps_what_it_is_given():
    with pytest.warns(UserWarning, match=r"NPURunConfig\((model_dir|hcom_parallel)") as caught:
        config = NPURunConfig(model_dir="/tmp/a", hcom_parallel=True, is_tailing_optimization=True)
    assert len(caught) == 2
    assert (config.model_dir, config.hcom_parallel) == ("/tmp/a", True)
    with pytest.raises(ValueError, match="must agree"):
        NPUOptimizer(tf.compat.v1.train.AdamOptimizer(), is_distributed=True)
    with pytest.raises(TypeError, match=r"no fields \['hcom_parallell'\]"):
        NPURunConfig(hcom_parallell=True)


def test_nothing_that_was_appended_to_is_lost():
    given = [1]
    assert npu_hooks_append(given) is given
    assert len(given) == 2
    assert npu_callbacks_append((1, 2))[:2] == [1, 2]
    assert len(npu_callbacks_append()) == len(npu_hooks_append()) == 1
