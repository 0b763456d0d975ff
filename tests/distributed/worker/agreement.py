# SPDX-License-Identifier: Apache-2.0
"""What ranks have to agree on before their first step, and what they do when they do not."""

import functools

import keras
import numpy as np
import tensorflow as tf
from harness import apply, check, digest, error_of, listed, manager, rank, scaled, size, weight

import npu_keras
from npu_keras import distribute


def _model(seed, units=(4,)):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(n, activation="tanh") for n in units]
    return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])


def _data(rows=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3)).astype("float32")
    return x, x @ np.float32([[1.0], [-2.0], [0.5]])


def _fit(model, optimizer, x, y, **settings):
    model.compile(optimizer, loss="mse", jit_compile=settings.pop("jit_compile", False))
    model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0, **settings)


@check
def different_seeds():
    """One step from different weights, slots and scales equals rank 0's alone."""
    model, optimizer = _model(rank()), scaled(keras.optimizers.Adam(0.01, global_clipnorm=0.5))
    start = distribute.engine().exchange(listed(model.trainable_variables))[0]
    optimizer.loss_scale.assign(2.0 ** (3 + rank()))
    x, y = _data(4 * size())
    mine = slice(4 * rank(), 4 * rank() + 4)
    _fit(model, optimizer, x[mine], y[mine])
    alone = _model(7)
    for variable, value in zip(alone.trainable_variables, start, strict=True):
        variable.assign(value)
    _fit(alone, keras.optimizers.Adam(0.01, global_clipnorm=0.5), x, y)
    weights = zip(model.get_weights(), alone.get_weights(), strict=True)
    return {
        "weights": digest(model.weights),
        "state": digest(optimizer.variables),
        "scale": float(optimizer.loss_scale),
        "difference": max(float(np.abs(a - b).max()) for a, b in weights),
    }


@check
def started_apart_eagerly():
    """In an eager loop the first gradients exist before the ranks have met."""
    v, optimizer = weight(1.0 + rank()), scaled()
    error = error_of(lambda: apply(optimizer, [v], [1.0]))
    untouched = float(v.numpy())
    distribute.broadcast([v])
    optimizer = scaled()
    apply(optimizer, [v], [1.0])
    return {"error": error, "untouched": untouched, "after": float(v.numpy())}


@check
def left_apart_on_request():
    v, optimizer = weight(1.0 + rank()), scaled(broadcast_initial=False)
    apply(optimizer, [v], [1.0])
    return float(v.numpy())


@check
def different_shapes():
    units = (4, 5) if rank() == 0 else (4, 6)
    model = _model(0, units)
    return error_of(lambda: _fit(model, scaled(), *_data()))


@check
def different_order():
    a, b = weight([1.0, 2.0], name="a"), weight(np.ones((2, 2)), name="b")
    variables = [a, b] if rank() == 0 else [b, a]
    return error_of(lambda: apply(scaled(), variables, [1.0, 1.0]))


@check
def different_count():
    variables = [weight(name=f"v{i}") for i in range(2 + (rank() == 1))]
    return error_of(lambda: apply(scaled(), variables, [1.0] * len(variables)))


@check
def different_dtype():
    v = weight(1.0, "float16" if rank() == 1 else "float32")
    return error_of(lambda: apply(scaled(), [v], [1.0]))


@check
def different_settings():
    optimizer = scaled(compression="bf16" if rank() == 1 else None)
    return error_of(lambda: apply(optimizer, [weight()], [1.0]))


@check
def different_managers():
    """Scales that move by different rules would part, and unscale what nobody scaled so."""
    report = []
    for other in (lambda: manager(grow=7), lambda: npu_keras.FixedLossScaleManager(8.0)):
        make = other if rank() == 1 else manager
        aggregating = scaled(scale_manager=make())
        deciding = npu_keras.NPULossScaleOptimizer(
            keras.optimizers.SGD(0.1), make(), is_distributed=True
        )
        deciding.scale_loss(0.0)
        for optimizer in (aggregating, deciding):
            report.append(error_of(functools.partial(apply, optimizer, [weight()], [1.0])))
    return report


@check
def same_shapes_other_names():
    """Names count up in a process; they do not matter."""
    for _ in range(rank()):
        _model(0)
    model, optimizer = _model(0), scaled()
    _fit(model, optimizer, *_data())
    return digest(model.weights)


@check
def compiled_by_xla():
    fit = error_of(lambda: _fit(_model(0), scaled(), *_data(), jit_compile=True))
    v = weight()
    decides = npu_keras.NPULossScaleOptimizer(
        keras.optimizers.SGD(0.1), manager(), is_distributed=True
    )
    decides.scale_loss(0.0)
    decides.build([v])
    step = tf.function(lambda: apply(decides, [v], [1.0]), jit_compile=True)
    return {"fit": fit, "function": error_of(step), "weight": float(v.numpy())}


@check
def none_on_one_rank():
    """A rank without a gradient sends zeros; without one anywhere a variable stays."""
    v, w, unused = weight(), weight(name="w"), weight(name="unused")
    optimizer = scaled()
    table = weight(np.ones((4, 2)), name="table")
    rows = tf.IndexedSlices(tf.ones([1, 2]), [3], [4, 2])
    has = rank() == 0
    gradients = [1.0, 1.0 if has else None, None, rows if has else None]
    apply(optimizer, [v, w, unused, table], gradients)
    return listed([v, w, unused, table])


@check
def new_gradient_later():
    v, w, optimizer = weight(), weight(name="w"), scaled()
    apply(optimizer, [v, w], [1.0, None])
    return error_of(lambda: apply(optimizer, [v, w], [1.0, 1.0]))
