# SPDX-License-Identifier: Apache-2.0
"""Replicas of one process take each step together, or a flavour says that it cannot."""

import numpy as np
import pytest
import tensorflow as tf
from flavours import FLAVOURS, INF, manager

# One strategy for all: a second one in a process may fail on the first one's collectives.
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
WITH_REPLICAS = [flavour for flavour in FLAVOURS if not flavour.name.startswith("v1")]


def of_replicas(values):
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


def trained(flavour, gradients):
    with STRATEGY.scope():
        run = flavour.run(lambda f: f.scaled(f.sgd(1.0), manager(64.0)), [[1.0, 1.0]])
        run.optimizer.build(run.variables)

    @tf.function
    def step(gradient):
        STRATEGY.run(lambda own: run._take(("dense",), own), args=(gradient,))

    for each in gradients:
        step(of_replicas(np.float32(each)))
    return run


@pytest.mark.parametrize("flavour", WITH_REPLICAS, ids=lambda flavour: flavour.name)
def test_an_overflow_on_one_replica_skips_on_all(flavour):
    run = trained(flavour, [(1, 2), (1, INF), (INF, 1), (INF, INF), (3, 4)])
    copies = STRATEGY.experimental_local_results(flavour.tensor(run.variables[0]))
    for copy in copies:
        np.testing.assert_array_equal(copy.numpy(), [-9.0, -9.0])
    assert run.scale() == 8.0
    assert [(event.attempt, event.rank) for event in run.events()] == [(2, 1), (3, 0), (4, 0)]
    assert run.counters()["skipped_steps"] == 3


@pytest.mark.parametrize(
    "flavour", [f for f in FLAVOURS if f.name == "v1"], ids=lambda flavour: flavour.name
)
def test_where_there_are_no_replicas_it_is_said(flavour):
    with STRATEGY.scope():
        run = flavour.run(lambda f: f.scaled(), [[1.0, 1.0]])
    with pytest.raises(ValueError, match="does not work under a `tf.distribute` strategy"):
        STRATEGY.run(lambda: run._take(("dense",), tf.constant(1.0)))
