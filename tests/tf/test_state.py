# SPDX-License-Identifier: Apache-2.0
"""The state can be read as plain numbers at any time, under a strategy as well."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from scaled import INF, KINDS, apply, make, manager, sgd, weight

from npu_keras.state import RING_COLUMNS, RING_ROWS

NUMBERS = {
    "loss_scale": 8.0,
    "good_steps": 0,
    "bad_steps": 0,
    "attempted_steps": 0,
    "skipped_steps": 0,
}


@pytest.mark.parametrize("kind", KINDS)
def test_reading_before_and_after_the_build(kind):
    optimizer = sgd(kind, manager(8.0))
    for _ in range(2):
        for name, expected in NUMBERS.items():
            variable = getattr(optimizer, name)
            assert float(variable) == expected
            assert int(variable) == int(expected)
            assert np.array(variable) == expected
            assert np.asarray(variable).shape == ()
        assert bool(optimizer.last_step_finite) is True
        optimizer.build([weight()])
    assert optimizer.dynamic_scale is optimizer.loss_scale
    assert optimizer.step_counter is optimizer.good_steps


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind):
    optimizer = sgd(kind)
    optimizer.build([weight(), weight()])
    dtypes = {name: np.array(variable).dtype.name for name, variable in optimizer._scaling.state}
    expected = dict.fromkeys(dtypes, "int64")
    expected |= {"loss_scale": "float32", "event_scales": "float32", "last_step_finite": "bool"}
    assert dtypes == expected
    assert optimizer._scaling.state.event_integers.shape == (RING_ROWS, RING_COLUMNS)
    assert optimizer._scaling.state.overflows_by_variable.shape == (2,)


def test_after_steps():
    optimizer, variable = sgd(scale_manager=manager(8.0, every=2)), weight()
    apply(optimizer, variable, 1.0, 1.0, INF)
    assert bool(optimizer.last_step_finite) is False
    numbers = {name: float(getattr(optimizer, name)) for name in NUMBERS}
    assert numbers == {
        "loss_scale": 8.0,
        "good_steps": 0,
        "bad_steps": 1,
        "attempted_steps": 3,
        "skipped_steps": 1,
    }
    apply(optimizer, variable, 1.0)
    assert bool(optimizer.last_step_finite) is True
    assert (int(optimizer.good_steps), int(optimizer.bad_steps)) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_variables(kind):
    """It is a file format; what is stored in tests/data depends on it."""
    optimizer = make(kind, manager=manager(), learning_rate=0.1, momentum=0.9)
    optimizer.build([weight(name="w")])
    names = [variable.path.split("/")[-1] for variable in optimizer.variables]
    state = [
        "loss_scale",
        "good_steps",
        "bad_steps",
        "attempted_steps",
        "skipped_steps",
        "last_step_finite",
        "scale_growths",
        "scale_backoffs",
        "event_count",
        "event_integers",
        "event_scales",
        "overflows_by_variable",
    ]
    host = ["iteration", "learning_rate"]
    slots = ["w_momentum"]
    assert names == (host + state + slots if kind == "mixin" else host + state + host + slots)


STRATEGY = """
    import keras, numpy as np, tensorflow as tf
    from npu_keras import ExponentialUpdateLossScaleManager, LossScaleMixin, NPUOptimizer

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    class ScaledSGD(LossScaleMixin, keras.optimizers.SGD):
        pass

    def scale():
        return ExponentialUpdateLossScaleManager(2.0**10, 100, 1, 2, 0.5)

    for make in (
        lambda: ScaledSGD(0.5, loss_scale_manager=scale()),
        lambda: NPUOptimizer(keras.optimizers.SGD(0.5), scale(), is_loss_scale=True),
    ):
        with strategy.scope():
            variable = keras.Variable(1.0)
            optimizer = make()
            optimizer.build([variable])
            inside = float(optimizer.loss_scale)

        def replica_step(factor):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(variable.value * factor)
            optimizer.apply([tape.gradient(loss, variable.value)], [variable])

        @tf.function
        def step(factor):
            strategy.run(replica_step, args=(factor,))

        step(tf.constant(float("inf")))
        step(tf.constant(0.25))
        assert inside == 1024.0
        assert float(optimizer.loss_scale) == 512.0
        assert int(optimizer.skipped_steps) == 1 and int(optimizer.attempted_steps) == 2
        assert np.array(optimizer.good_steps) == 1
        assert bool(optimizer.last_step_finite)
        assert [event.kind for event in optimizer.journal.drain()] == ["back off"]
        with strategy.scope():
            assert float(optimizer.loss_scale) == 512.0
        # Two replicas with 0.25 each: the sum, as Keras has it.
        assert float(np.array(variable.value.numpy())) == 1.0 - 0.5 * 0.5
    print("read")
"""


def test_under_a_strategy():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STRATEGY)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "read"
