# SPDX-License-Identifier: Apache-2.0
"""Replicas of a MirroredStrategy decide together, whichever of them overflows."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hosts import INF, LEGACY, MAKERS, data, events, manager, small_model

from npu_keras import tf_keras as npu

# One strategy for all: a second one in a process may fail on the first one's collectives.
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("kind", ["wrapper", "legacy mixin", "scaling outside"])
def test_an_overflow_on_the_second_replica_skips_on_both(kind):
    with STRATEGY.scope():
        model = small_model()
        model.compile(MAKERS[kind]("SGD", learning_rate=0.01), "mse")
    x, y = data(bad=[1])  # the last row of a batch, on replica 1
    optimizer = model.optimizer
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    for weight in model.trainable_variables:
        first, second = (each.numpy() for each in weight.values)
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second)
    assert events(optimizer)[0] == (2, "back off", 1)
    assert (int(optimizer.skipped_steps), int(optimizer.attempted_steps)) == (1, 8)
    assert float(optimizer.loss_scale) == 2048.0
    assert int(optimizer.iterations.numpy()) == 7


@pytest.mark.parametrize("module", [tf_keras.optimizers, LEGACY], ids=["new", "legacy"])
def test_loops_sum_over_replicas_once(module):
    with STRATEGY.scope():
        v = tf.Variable([1.0, 1.0])
        optimizer = npu.NPULossScaleOptimizer(module.SGD(1.0), manager())
        optimizer.build([v])

    @tf.function
    def step(gradients, aggregated):
        def replica(gradient):
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(tf.reduce_sum(v * gradient))
            own = optimizer.get_unscaled_gradients(tape.gradient(loss, [v]))
            if aggregated:
                own = tf.distribute.get_replica_context().all_reduce("sum", own)
            optimizer.apply_gradients(
                zip(own, [v], strict=True), skip_gradients_aggregation=aggregated
            )

        STRATEGY.run(replica, args=(gradients,))

    def of_replicas(*values):
        make = lambda context: tf.constant(values[context.replica_id_in_sync_group])  # noqa: E731
        return STRATEGY.experimental_distribute_values_from_function(make)

    for aggregated in (False, True):
        v.assign([1.0, 1.0])
        step(of_replicas(1.0, 3.0), aggregated)
        assert v.numpy().tolist() == [-3.0, -3.0]
        step(of_replicas(1.0, INF), aggregated)
        assert v.numpy().tolist() == [-3.0, -3.0]
    assert int(optimizer.skipped_steps) == 2
