# SPDX-License-Identifier: Apache-2.0
"""Weight-update sharding: each rank updates what it owns, then all have it."""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from harness import INF, apply, check, digest, error_of, manager, rank, recorded, size, weight

import npu_keras
from npu_keras import distribute

SHAPES = [(3, 4), (5,), (2, 2), (7,)]


def _variables():
    rng = np.random.default_rng(7)
    return [weight(rng.standard_normal(s), name=f"v{i}") for i, s in enumerate(SHAPES)]


def _optimizer(inner, sharded, engine=None):
    shared = npu_keras.NPUDistributedOptimizer(
        inner,
        is_weight_update_sharding=sharded,
        aggregation=npu_keras.GradientAggregation(engine=engine),
    )
    optimizer = npu_keras.NPULossScaleOptimizer(shared, manager())
    optimizer.scale_loss(0.0)
    return optimizer


def _gradients(step, bad=False):
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
            variables, optimizer = _variables(), _optimizer(make(), sharded)
            for step in range(5):
                apply(optimizer, variables, _gradients(step, bad=step == 2))
            optimizer.finalize_variable_values(variables)
            counted = [int(optimizer.iterations), int(optimizer.skipped_steps)]
            both.append([digest(variables), *counted, float(optimizer.loss_scale)])
        report[name] = both
    return report


@check
def slots_where_owned():
    variables, optimizer = _variables(), _optimizer(keras.optimizers.Adam(0.01), True)
    apply(optimizer, variables, _gradients(0))
    inner = optimizer.inner_optimizer.inner_optimizer
    sizes = [int(np.prod(v.shape)) for v in inner.variables if len(v.shape)]
    return sizes


@check
def same_collectives_in_every_step():
    """An overflow changes nothing about what is sent."""
    variables, optimizer = _variables(), _optimizer(keras.optimizers.Adam(0.01), True)
    lists = []
    for step in range(4):
        with recorded() as sent:
            apply(optimizer, variables, _gradients(step, bad=step in (1, 3)))
        lists.append(sent)
    return lists[1:]


@check
def sharded_in_fit():
    """In a graph, with rank 0's start and an overflow on rank 0."""
    keras.utils.set_random_seed(rank())
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    optimizer = _optimizer(keras.optimizers.Adam(0.01), True)
    model.compile(optimizer, loss="mse", jit_compile=False)
    x = np.random.default_rng(rank()).standard_normal((12, 3)).astype("float32")
    x[4, 0] = INF if rank() == 0 else 0.0
    model.fit(x, x[:, :1], batch_size=4, shuffle=False, verbose=0)
    finite = all(np.isfinite(w).all() for w in model.get_weights())
    return [digest(model.weights), finite, int(optimizer.skipped_steps)]


@check
def sharded_checkpoint():
    """What 2 ranks saved goes on alike on 2 and on 1, and what 1 has saved on 2."""
    own = tempfile.mkdtemp() if rank() == 0 else ""
    folder = pathlib.Path(distribute.engine().exchange(own)[0])
    report = {}
    for before, after in ((None, None), (None, "local"), ("local", None)):
        engines = (before, after)
        models = [_model(_optimizer(keras.optimizers.Adam(0.01), True, e)) for e in engines]
        _steps(models[0])
        path = folder / f"{before}-{after}-{rank()}.weights.h5"
        models[0].save_weights(path)
        models[1].load_weights(path)
        for model in models:
            _steps(model)
        states = [[int(m.optimizer.iterations), float(m.optimizer.loss_scale)] for m in models]
        report[f"{before} {after}"] = [[digest(m.weights) for m in models], states]
    return report


@check
def sharded_model_file():
    model = _model(_optimizer(keras.optimizers.Adam(0.01), True))
    _steps(model)
    path = pathlib.Path(tempfile.mkdtemp()) / "whole.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    loaded.optimizer.scale_loss(0.0)
    for each in (model, loaded):
        _steps(each)
    return [digest(each.weights) for each in (model, loaded)]


def _model(optimizer):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(optimizer, loss="mse", jit_compile=False)
    optimizer.build(model.trainable_variables)
    return model


def _steps(model):
    for step in range(3):
        gradients = [INF if step == 1 else 1.0] * len(model.trainable_variables)
        apply(model.optimizer, model.trainable_variables, gradients)


@check
def more_ranks_than_variables():
    optimizer = _optimizer(keras.optimizers.SGD(0.1), True)
    variables = [weight(name=f"v{i}") for i in range(size() - 1)]
    return error_of(lambda: apply(optimizer, variables, [1.0] * len(variables)))


@check
def shares_with_rows():
    """An embedding that one rank owns, updated by the rows of all."""
    both = []
    for sharded in (False, True):
        table, w = weight(np.ones((6, 2)), name="table"), weight([1.0, 1.0, 1.0], name="w")
        u = weight([1.0] * 5, name="u")
        optimizer = _optimizer(keras.optimizers.Adam(0.1), sharded)
        for _ in range(2):
            rows = tf.IndexedSlices(tf.ones([2, 2]), [rank(), 4], [6, 2])
            apply(optimizer, [table, w, u], [rows, 1.0, 2.0])
        both.append(digest([table, w, u]))
    return both
