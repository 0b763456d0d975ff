# SPDX-License-Identifier: Apache-2.0
"""What one number of ranks saves, another loads."""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from harness import INF, apply, check, digest, error_of, manager, rank, scaled

import npu_keras
from npu_keras import distribute


def _alone(inner):
    optimizer = npu_keras.NPUOptimizer(
        inner,
        manager(),
        is_distributed=True,
        is_loss_scale=True,
        aggregation=npu_keras.GradientAggregation(engine="local"),
    )
    optimizer.scale_loss(0.0)
    return optimizer


def _compiled(optimizer):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(optimizer, loss="mse", jit_compile=False)
    optimizer.build(model.trainable_variables)
    return model


def _steps(model, bad=()):
    optimizer = model.optimizer
    for step in range(3):
        gradients = [INF if step in bad else 1.0] * len(model.trainable_variables)
        apply(optimizer, model.trainable_variables, gradients)


def _counters(optimizer):
    return [int(optimizer.iterations), *map(float, optimizer.journal.snapshot())]


def _adam():
    return keras.optimizers.Adam(0.01)


def _shared_folder():
    """A folder of rank 0, known to all."""
    own = tempfile.mkdtemp() if rank() == 0 else ""
    return pathlib.Path(distribute.engine().exchange(own)[0])


def _report(saved, loaded):
    """Both train on: what was loaded must go on as what was saved would have."""
    before = {"counters": _counters(saved.optimizer) == _counters(loaded.optimizer)}
    before["scale"] = float(loaded.optimizer.loss_scale)
    before["type"] = type(loaded.optimizer).__name__
    loaded.optimizer.scale_loss(0.0)
    _steps(saved)
    _steps(loaded)
    before["weights"] = [digest(saved.weights), digest(loaded.weights)]
    before["counters after"] = _counters(saved.optimizer) == _counters(loaded.optimizer)
    return before


@check
def one_rank_then_all():
    """Weights, slots, scale and counters of a single process, in every format."""
    folder, report = _shared_folder(), {}
    alone = _compiled(_alone(_adam()))
    _steps(alone, bad=(0, 1))
    alone.optimizer._aggregation._engine = None  # as if nobody had named an engine
    if rank() == 0:
        alone.save(folder / "whole.keras")
        alone.save_weights(folder / "only.weights.h5")
        tf.train.Checkpoint(model=alone, optimizer=alone.optimizer).write(
            str(folder / "checkpoint")
        )
    distribute.barrier()
    alone.optimizer._aggregation._engine = "local"
    whole = keras.models.load_model(folder / "whole.keras")
    report["keras"] = _report(alone, whole)
    alone = _compiled(_alone(_adam()))
    _steps(alone, bad=(0, 1))
    several = _compiled(scaled(_adam()))
    checkpoint = tf.train.Checkpoint(model=several, optimizer=several.optimizer)
    checkpoint.read(str(folder / "checkpoint")).assert_existing_objects_matched()
    report["checkpoint"] = _report(alone, several)
    return report


class Own(npu_keras.LossScaleMixin, npu_keras.GradientAggregationMixin, keras.optimizers.Adam):
    """An optimizer class that nobody has registered with Keras."""


@check
def own_class_of_one_rank_then_all():
    folder, alone = _shared_folder(), npu_keras.GradientAggregation(engine="local")
    saved = _compiled(Own(0.01, loss_scale_manager=manager(), aggregation=alone))
    saved.optimizer.scale_loss(0.0)
    _steps(saved, bad=(0, 1))
    alone._engine = None  # as if nobody had named an engine
    if rank() == 0:
        saved.save(folder / "whole.keras")
    distribute.barrier()
    alone._engine = "local"
    unknown = error_of(lambda: keras.models.load_model(folder / "whole.keras"))
    loaded = keras.models.load_model(folder / "whole.keras", custom_objects={"Own": Own})
    return {**_report(saved, loaded), "without custom_objects": unknown}


@check
def all_then_one_rank():
    folder = _shared_folder()
    several = _compiled(scaled(_adam()))
    _steps(several, bad=(0, 1))
    if rank() == 0:
        several.save(folder / "whole.keras")
    distribute.barrier()
    loaded = keras.models.load_model(folder / "whole.keras")
    loaded.optimizer._aggregation._engine = "local"
    return _report(several, loaded)


@check
def restored_on_rank_0_only():
    """Rank 0 has loaded a checkpoint, the others start anew: all go on from it."""
    model = _compiled(scaled(_adam()))
    if rank() == 0:
        model.optimizer.loss_scale.assign(2.0)
        model.optimizer.iterations.assign(41)
        for variable in model.trainable_variables:
            variable.assign_add(np.ones(variable.shape))
    step = tf.function(
        lambda: apply(model.optimizer, model.trainable_variables, [1.0] * 4), autograph=False
    )
    step()
    return {
        "weights": digest(model.weights),
        "state": digest(model.optimizer.variables),
        "iterations": int(model.optimizer.iterations),
        "scale": float(model.optimizer.loss_scale),
    }


@check
def config_round_trip():
    config = scaled(_adam(), compression="bf16", split=[60, 20, 20]).get_config()
    again = npu_keras.NPUOptimizer.from_config(config)
    return again.get_config() == config
