# SPDX-License-Identifier: Apache-2.0
"""Weight-update sharding: each rank updates what it owns, then all have it."""

import keras
import numpy as np
import tensorflow as tf
from harness import INF, apply, check, digest, manager, rank, recorded, size, weight

import npu_keras

SHAPES = [(3, 4), (5,), (2, 2), (7,)]


def variables_of_four_sizes():
    rng = np.random.default_rng(7)
    return [weight(rng.standard_normal(s), name=f"v{i}") for i, s in enumerate(SHAPES)]


def sharding_optimizer(inner, sharded, engine=None):
    shared = npu_keras.NPUDistributedOptimizer(
        inner,
        is_weight_update_sharding=sharded,
        aggregation=npu_keras.GradientAggregation(engine=engine),
    )
    optimizer = npu_keras.NPULossScaleOptimizer(shared, manager())
    optimizer.scale_loss(0.0)
    return optimizer


def gradients_for(step, bad=False):
    rng = np.random.default_rng([rank(), step])
    gradients = [rng.standard_normal(shape).astype("float32") for shape in SHAPES]
    if bad and rank() == size() - 1:
        gradients[0][0, 0] = INF
    return gradients


@check
def sharded_and_not():
    """The same weights, with an overflow on the way, and with clipping by the global norm."""
    report = {}
    for name, make in {
        "Adam": lambda: keras.optimizers.Adam(0.01),
        "SGD, global_clipnorm": lambda: keras.optimizers.SGD(0.1, 0.9, global_clipnorm=0.5),
        "AdamW, EMA": lambda: keras.optimizers.AdamW(0.01, use_ema=True, clipnorm=0.3),
    }.items():
        both = []
        for sharded in (False, True):
            variables, optimizer = variables_of_four_sizes(), sharding_optimizer(make(), sharded)
            for step in range(5):
                apply(optimizer, variables, gradients_for(step, bad=step == 2))
            optimizer.finalize_variable_values(variables)
            counted = [int(optimizer.iterations), int(optimizer.skipped_steps)]
            both.append([digest(variables), *counted, float(optimizer.loss_scale)])
        report[name] = both
    return report


@check
def same_collectives_in_every_step():
    """An overflow changes nothing about what is sent."""
    variables, optimizer = (
        variables_of_four_sizes(),
        sharding_optimizer(keras.optimizers.Adam(0.01), True),
    )
    lists = []
    for step in range(4):
        with recorded() as sent:
            apply(optimizer, variables, gradients_for(step, bad=step in (1, 3)))
        lists.append(sent)
    return lists[1:]


@check
def sharded_in_fit():
    """In a graph, with rank 0's start and an overflow on rank 0."""
    keras.utils.set_random_seed(rank())
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    optimizer = sharding_optimizer(keras.optimizers.Adam(0.01), True)
    model.compile(optimizer, loss="mse", jit_compile=False)
    x = np.random.default_rng(rank()).standard_normal((12, 3)).astype("float32")
    x[4, 0] = INF if rank() == 0 else 0.0
    model.fit(x, x[:, :1], batch_size=4, shuffle=False, verbose=0)
    finite = all(np.isfinite(w).all() for w in model.get_weights())
    return [digest(model.weights), finite, int(optimizer.skipped_steps)]


@check
def shares_with_rows():
    """An embedding that one rank owns, updated by the rows of all."""
    both = []
    for sharded in (False, True):
        table, w = weight(np.ones((6, 2)), name="table"), weight([1.0, 1.0, 1.0], name="w")
        u = weight([1.0] * 5, name="u")
        optimizer = sharding_optimizer(keras.optimizers.Adam(0.1), sharded)
        for _ in range(2):
            rows = tf.IndexedSlices(tf.ones([2, 2]), [rank(), 4], [6, 2])
            apply(optimizer, [table, w, u], [rows, 1.0, 2.0])
        both.append(digest([table, w, u]))
    return both
