# SPDX-License-Identifier: Apache-2.0
"""Checks of `strategy.run` loops over two replicas."""

import contextlib

import keras
import numpy as np
import tensorflow as tf
from harness import INF, check, error_of, events, manager, weight
from made_of_others import MADE
from mirrored import STRATEGY, loop, run_steps

import npu_keras


def _scaled(inner, scale=8.0):
    optimizer = npu_keras.NPULossScaleOptimizer(inner, manager(scale))
    optimizer.scale_loss(0.0)
    return optimizer


@check
def custom_loop():
    with STRATEGY.scope():
        v = weight()
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        optimizer.build([v])
    report = []
    for _ in loop(optimizer, [v], [(1, 2), (INF, 1), (1, INF), (INF, INF), (1, 1)]):
        replicas = STRATEGY.experimental_local_results(v.value)
        report.append([[float(r) for r in replicas], float(optimizer.loss_scale)])
    return {"steps": report, "events": events(optimizer)}


@check
def clipping_sees_the_sum():
    report = {}
    for name in ("global_clipnorm", "clipnorm"):
        with STRATEGY.scope():
            v = weight(0.0)
            optimizer = _scaled(keras.optimizers.SGD(1.0, **{name: 1.0}))
            optimizer.build([v])
        run_steps(optimizer, [v], [(100.0, -0.2)])
        report[name] = float(v.numpy())
    return report


@check
def finite_gradients_with_an_infinite_sum():
    with STRATEGY.scope():
        v = weight()
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        optimizer.build([v])
    run_steps(optimizer, [v], [(3e38 / 8, 3e38 / 8)])
    return {"weight": float(v.numpy()), "events": events(optimizer)}


class ScaledAdamW(npu_keras.LossScaleMixin, keras.optimizers.AdamW):
    pass


ACCUMULATING = {
    "wrapper": lambda k: _scaled(keras.optimizers.AdamW(0.1, gradient_accumulation_steps=k)),
    "mixin": lambda k: ScaledAdamW(
        0.1, gradient_accumulation_steps=k, loss_scale_manager=manager(8.0)
    ),
    "without loss scaling": lambda k: npu_keras.NPUOptimizer(
        keras.optimizers.AdamW(0.1, gradient_accumulation_steps=k)
    ),
}


@check
def accumulation():
    report = {}
    for kind, make in ACCUMULATING.items():
        bad = [] if kind.startswith("without") else [(INF, 0.0)]
        for name, k, gradients in (
            ("k steps", 2, [(1.0, 2.0), *bad, (3.0, 4.0)] * 2),
            ("one step", None, [(2.0, 3.0)] * 2),
        ):
            with STRATEGY.scope():
                v = weight(0.0)
                optimizer = make(k)
                optimizer.scale_loss(0.0)
                optimizer.build([v])
            run_steps(optimizer, [v], gradients)
            report[f"{kind}: {name}"] = [float(v.numpy()), int(optimizer.iterations.numpy())]
    return report


@check
def accumulation_in_fit():
    """Two steps of half a batch against one of a whole one."""
    x = np.random.default_rng(0).standard_normal((64, 3)).astype("float32")
    report = []
    for k, batch_size in ((2, 8), (None, 16)):
        keras.utils.set_random_seed(1)
        with STRATEGY.scope():
            model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
            inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=k)
            optimizer = npu_keras.NPUOptimizer(inner, manager(8.0), is_loss_scale=True)
            model.compile(optimizer, "mse", jit_compile=False)
        model.fit(x, x[:, :1], batch_size=batch_size, shuffle=False, verbose=0)
        report.append([*model.get_weights()[0].ravel().tolist(), int(optimizer.iterations.numpy())])
    return report


@check
def made_of_others():
    report = {}
    for name, make in MADE.items():
        with STRATEGY.scope():
            variables = [weight(1.0, name="v"), weight(1.0, name="w")]
            optimizer = _scaled(make())
            optimizer.build(variables)
        run_steps(optimizer, variables, [(1.0, 2.0), (1.0, INF), (2.0, 2.0)])
        report[name] = [float(v.numpy()) for v in variables]
    return report


@check
def averages_and_schedules():
    report = {}
    for name, scope in (("strategy", STRATEGY.scope), ("alone", contextlib.nullcontext)):
        with scope():
            v = weight(0.0)
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
            inner = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.5)
            optimizer = _scaled(inner)
            optimizer.build([v])
        if name == "strategy":
            run_steps(optimizer, [v], [(0.5, 0.5), (INF, 0.5), (0.5, 0.5), (0.5, 0.5)])
        else:
            for gradient in (1.0, INF, 1.0, 1.0):
                optimizer.apply([tf.constant(gradient * float(optimizer.loss_scale))], [v])
        with scope():
            optimizer.finalize_variable_values([v])
        report[name] = [float(v.numpy()), float(optimizer.learning_rate)]
    return report


@check
def outside_of_a_replica():
    with STRATEGY.scope():
        v = weight()
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        return error_of(lambda: optimizer.apply([tf.constant(1.0)], [v]))


@check
def rows():
    """IndexedSlices over replicas, with an overflow in the rows of replica 1."""
    with STRATEGY.scope():
        table = weight(np.ones((4, 2)))
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        optimizer.build([table])

    def make(value):
        return tf.IndexedSlices(tf.fill([2, 2], value), tf.constant([1, 3]), tf.constant([4, 2]))

    report = []
    for _ in loop(optimizer, [table], [(1, 2), (1, INF)], make):
        report.append(table.numpy().astype(float).tolist())
    return {"steps": report, "events": events(optimizer)}


@check
def sharding():
    """There are no ranks to own shares of the update."""
    with STRATEGY.scope():
        v, w = weight(), weight(name="w")
        optimizer = npu_keras.NPUDistributedOptimizer(
            keras.optimizers.SGD(0.1), is_weight_update_sharding=True
        )
        return error_of(lambda: optimizer.build([v, w]))
