# SPDX-License-Identifier: Apache-2.0
"""Two replicas on two logical CPU devices: the strategy, and loops of steps under it."""

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def loop(optimizer, variables, gradients, make=lambda value: value):
    """Steps of `strategy.run`, one gradient for each replica; yields after each."""

    @tf.function(autograph=False)
    def step(per_replica):
        def replica(gradient):
            scaled = gradient * tf.convert_to_tensor(optimizer.loss_scale)
            optimizer.apply([make(scaled) for _ in variables], variables)

        STRATEGY.run(replica, args=(per_replica,))

    for values in gradients:
        step(by_replica(values))
        yield


def by_replica(values):
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group], tf.float32)
    )


def run_steps(*arguments):
    for _ in loop(*arguments):
        pass
