# SPDX-License-Identifier: Apache-2.0
"""Several ranks with their share of a batch do what one rank does with the whole batch."""

import keras
import numpy as np
import tensorflow as tf
from harness import apply, check, digest, rank, scaled, size, weight

STEPS = 5
IN_A_GRAPH = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "AdamW, clipnorm": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.05, clipnorm=0.2),
}
EAGERLY = {
    "Adam, global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.3),
    "Adam, clipvalue, EMA": lambda: keras.optimizers.Adam(0.01, clipvalue=0.05, use_ema=True),
    "Lion, schedule": lambda: keras.optimizers.Lion(
        keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5), weight_decay=0.01
    ),
}


def _model():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
    )


def _train(optimizer, mine, graph):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((STEPS, 64, 6)).astype("float32")
    y = np.stack([x.sum(-1), x[..., 0] - x[..., 1]], -1)
    model = _model()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    step = tf.function(step, autograph=False) if graph else step
    for xs, ys in zip(x, y, strict=True):
        step(tf.constant(xs[mine]), tf.constant(ys[mine]))
    optimizer.finalize_variable_values(model.trainable_variables)
    return model


@check
def same_as_one_rank():
    share = 64 // size()
    mine = slice(rank() * share, rank() * share + share)
    report = {}
    for name, make in {**IN_A_GRAPH, **EAGERLY}.items():
        several = _train(scaled(make()), mine, name in IN_A_GRAPH)
        one = _train(make(), slice(0, share * size()), name in IN_A_GRAPH)
        report[name] = {
            "difference": _distance(several, one),
            "moved": _distance(_model(), one),
            "weights": digest(several.weights),
        }
    return report


def _distance(first, second):
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


@check
def clipping_sees_the_mean():
    """100 here and -0.2 there: their mean is clipped to 1, not each to 1 and -0.2."""
    report = {}
    for name in ("global_clipnorm", "clipnorm"):
        v = weight(0.0)
        optimizer = scaled(keras.optimizers.SGD(1.0, **{name: 1.0}))
        apply(optimizer, [v], [100.0 if rank() == 0 else -0.2])
        report[name] = float(v.numpy())
    v = weight(0.0)
    optimizer = scaled(keras.optimizers.SGD(1.0), reduction="sum")
    apply(optimizer, [v], [100.0 if rank() == 0 else -0.2])
    report["sum, not clipped"] = float(v.numpy())
    return report
