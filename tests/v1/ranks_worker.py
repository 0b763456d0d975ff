# SPDX-License-Identifier: Apache-2.0
"""Steps of the `tf.compat.v1` flavour on several ranks; writes what each rank saw."""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import tensorflow as tf
from loops import INF, Loop, manager, session, v1

from npu_keras import GradientAggregation, engines
from npu_keras.v1 import (
    BroadcastGlobalVariablesHook,
    NPUDistributedOptimizer,
    NPULossScaleOptimizer,
    NPUOptimizer,
    broadcast_global_variables,
)

RANK = engines.find().rank  # made before the first tensor
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def plain(value):
    return tf.nest.map_structure(lambda v: np.asarray(v).tolist(), value)


def sgd():
    return v1.train.GradientDescentOptimizer(0.5)


def both(mode="inf_nan", **settings):
    return NPUOptimizer(
        sgd(),
        manager(),
        is_distributed=True,
        is_loss_scale=True,
        overflow_mode=mode,
        aggregation=GradientAggregation(**settings),
    )


def nested():
    return NPULossScaleOptimizer(NPUDistributedOptimizer(sgd()), manager(), is_distributed=True)


def nested_the_other_way():
    return NPUDistributedOptimizer(NPULossScaleOptimizer(sgd(), manager()))


def tail():
    return NPUOptimizer(
        v1.train.MomentumOptimizer(0.5, 0.5),
        manager(),
        is_distributed=True,
        is_loss_scale=True,
        is_tailing_optimization=True,
        aggregation=GradientAggregation(split=[0, 1]),
    )


def uneven_loss(variables, x):
    """Rank 1 has no gradient for the last variable, and sparse ones for the second."""
    loss = tf.reduce_sum(variables[0]) * x + tf.reduce_sum(tf.gather(variables[1], [RANK, 2]))
    return loss if RANK == 1 else loss + 2.0 * variables[2]


def three_steps(context, make):
    """Steps 1 and 3 are good; in step 2 rank 1 alone overflows."""
    loop = Loop(context, make, [[1.0, 2.0], np.ones((3, 2)), 3.0], uneven_loss, [1.0])
    weights = []
    for feed in (1.0 + RANK, INF if RANK == 1 else 1.0, 3.0):
        loop.step(feed)
        weights.append(plain(loop.read(loop.variables)))
    events = [[e.attempt, e.kind, e.variable, e.rank] for e in loop.journal()]
    scale, steps = loop.read([loop.optimizer.loss_scale, loop.global_step])
    return {"weights": weights, "events": events, "scale": float(scale), "steps": int(steps)}


@check
def in_function():
    return three_steps("function", both)


@check
def eagerly():
    return three_steps("eager", nested)


@check
def in_graph_nested():
    return three_steps("graph", nested)


@check
def in_graph_nested_the_other_way():
    return three_steps("graph", nested_the_other_way)


@check
def in_graph_with_tail():
    return three_steps("graph", tail)


@check
def deciding_only():
    """Gradients are the script's affair; the decision is common."""
    make = lambda: NPULossScaleOptimizer(sgd(), manager(), is_distributed=True)  # noqa: E731
    loop = Loop("graph", make, [1.0], lambda variables, x: variables[0] * x, [1.0])
    loop.step(INF if RANK == 1 else 1.0)
    skipped = plain(loop.read(loop.variables))
    loop.step(1.0 + RANK)
    return [skipped, plain(loop.read(loop.variables))]


@check
def sum_that_overflows():
    """40000 on each rank is finite in float16; what arrives is not, and is not applied."""
    make = lambda: both(reduction="sum", compression="fp16")  # noqa: E731
    loop = Loop("graph", make, [1.0], lambda variables, x: variables[0] * x, [1.0])
    loop.step(5000.0)  # times 8
    skipped = plain(loop.read(loop.variables))
    loop.step(1.0)
    return [skipped, plain(loop.read(loop.variables)), [e.rank for e in loop.journal()]]


@check
def saturated():
    """The mean halves what rank 1 has at the limit; nothing of it shows in the aggregate."""
    make = lambda: both("saturation")  # noqa: E731
    loop = Loop("graph", make, [1.0], lambda variables, x: variables[0] * x, [1.0])
    loop.step(float(np.finfo(np.float32).max) / 8 if RANK == 1 else 1.0)
    skipped = plain(loop.read(loop.variables))
    loop.step(1.0)
    return [skipped, plain(loop.read(loop.variables)), [e.rank for e in loop.journal()]]


@check
def different_weights():
    """The first step finds out; the operation puts it right; then rank 0's weights are all's."""
    with tf.Graph().as_default():
        variable = v1.Variable(1.0 + RANK)
        op = both().minimize(variable * 2.0)
        broadcast = broadcast_global_variables(0)
        with session() as opened:
            try:
                opened.run(op)
                message = "none"
            except tf.errors.OpError as error:
                message = "broadcast_global_variables" in str(error)
            opened.run(broadcast)
            opened.run(op)
            return [message, plain(opened.run(variable))]


@check
def hook():
    with tf.Graph().as_default():
        variable = v1.Variable(1.0 + RANK)
        step = v1.train.get_or_create_global_step()
        op = NPUDistributedOptimizer(sgd()).minimize(variable * (1.0 + RANK), step)
        hooks = [BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredSession(v1.train.ChiefSessionCreator(), hooks) as opened:
            opened.run(op)
            return plain(opened.run([variable, step]))


@check
def two_optimizers_in_turn():
    """Each is run without what the other is fed with, then both at once."""
    with tf.Graph().as_default():
        first, second = v1.Variable(1.0), v1.Variable(1.0)
        x, y = v1.placeholder(tf.float32, []), v1.placeholder(tf.float32, [])
        ops = [
            both().minimize(first * x, var_list=[first]),
            both().minimize(second * y, var_list=[second]),
        ]
        seen = []
        with session() as opened:
            for fetches, feeds in [
                (ops[1], {y: 1.0 + RANK}),
                (ops[0], {x: 1.0}),
                (ops, {x: INF if RANK else 1.0, y: 1.0}),
            ]:
                opened.run(fetches, feeds)
                seen.append(plain(opened.run([first, second])))
        return seen


@check
def one_optimizer_for_two_lists():
    with tf.Graph().as_default():
        first, second = v1.Variable(1.0), v1.Variable(1.0)
        optimizer = both()
        ops = [
            optimizer.minimize(first * (1.0 + RANK), var_list=[first]),
            optimizer.minimize(second * 2.0, var_list=[second]),
        ]
        with session() as opened:
            opened.run(ops[0])
            opened.run(ops[1])
            return plain(opened.run([first, second]))


@check
def accumulating():
    """The decision stands in the script's own conditional."""
    with tf.Graph().as_default():
        variable, total = v1.Variable(1.0), v1.Variable(0.0, trainable=False)
        count, x = v1.Variable(0, trainable=False), v1.placeholder(tf.float32, [])
        optimizer = both()
        ((gradient, _),) = optimizer.compute_gradients(variable * x, [variable])
        with tf.control_dependencies([v1.assign_add(count, 1), gradient]):
            counted, added = tf.identity(count), v1.assign_add(total, gradient)

        def update():
            with tf.control_dependencies([optimizer.apply_gradients([(added, variable)])]):
                return tf.group(v1.assign(total, 0.0))

        op = v1.cond(tf.equal(counted % 2, 0), update, lambda: tf.group(added))
        with session() as opened:
            for feed in (1.0, 0.5, INF if RANK == 1 else 1.0, 1.0):
                opened.run(op, {x: feed})
            return plain(opened.run([variable, optimizer.skipped_steps]))


def main(names):
    for name in names:
        try:
            report = CHECKS[name]()
        except Exception as error:  # a rank alone would keep the others waiting
            report = f"{type(error).__name__}: {error}"
        print("CHECK", json.dumps([name, report, None]), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1].split(",") if sys.argv[1] != "all" else list(CHECKS))
