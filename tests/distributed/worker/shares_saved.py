# SPDX-License-Identifier: Apache-2.0
"""Weight-update sharding with two ranks: who has which slots, and what is saved of them."""

import pathlib
import tempfile

import keras
import numpy as np
from harness import INF, apply, check, digest, error_of, rank, size, weight
from shares import gradients_for, sharding_optimizer, variables_of_four_sizes

from npu_keras import distribute


@check
def slots_where_owned():
    variables, optimizer = (
        variables_of_four_sizes(),
        sharding_optimizer(keras.optimizers.Adam(0.01), True),
    )
    apply(optimizer, variables, gradients_for(0))
    inner = optimizer.inner_optimizer.inner_optimizer
    sizes = [int(np.prod(v.shape)) for v in inner.variables if len(v.shape)]
    return sizes


@check
def sharded_checkpoint():
    """What 2 ranks saved goes on alike on 2 and on 1, and what 1 has saved on 2."""
    own = tempfile.mkdtemp() if rank() == 0 else ""
    folder = pathlib.Path(distribute.engine().exchange(own)[0])
    report = {}
    for before, after in ((None, None), (None, "local"), ("local", None)):
        engines = (before, after)
        models = [_model(sharding_optimizer(keras.optimizers.Adam(0.01), True, e)) for e in engines]
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
    model = _model(sharding_optimizer(keras.optimizers.Adam(0.01), True))
    _steps(model)
    path = pathlib.Path(tempfile.mkdtemp()) / "whole.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    loaded.optimizer.scale_loss(0.0)
    for each in (model, loaded):
        _steps(each)
    return [digest(each.weights) for each in (model, loaded)]


@check
def more_ranks_than_variables():
    optimizer = sharding_optimizer(keras.optimizers.SGD(0.1), True)
    variables = [weight(name=f"v{i}") for i in range(size() - 1)]
    return error_of(lambda: apply(optimizer, variables, [1.0] * len(variables)))


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
