# SPDX-License-Identifier: Apache-2.0
"""Every way to put loss scaling and aggregation together: the same weights, or a TypeError."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from harness import INF, check, digest, manager, rank, size, weight
from keras.optimizers import SGD

from npu_keras import (
    GradientAggregationMixin,
    LossScaleMixin,
    NPUDistributedOptimizer,
    NPULossScaleOptimizer,
    NPUOptimizer,
)


class Scaled(LossScaleMixin, SGD):
    pass


class Aggregated(GradientAggregationMixin, SGD):
    pass


class ScaledAggregated(LossScaleMixin, GradientAggregationMixin, SGD):
    pass


class AggregatedScaled(GradientAggregationMixin, LossScaleMixin, SGD):
    pass


INNERMOST = {
    "SGD": lambda: SGD(0.1, momentum=0.9),
    "SGD with a factor": lambda: SGD(0.1, momentum=0.9, loss_scale_factor=4.0),
    "Scaled": lambda: Scaled(0.1, momentum=0.9, loss_scale_manager=manager()),
    "Aggregated": lambda: Aggregated(0.1, momentum=0.9),
    "ScaledAggregated": lambda: ScaledAggregated(0.1, momentum=0.9, loss_scale_manager=manager()),
    "AggregatedScaled": lambda: AggregatedScaled(0.1, momentum=0.9, loss_scale_manager=manager()),
}
WRAPPERS = {
    "scale": lambda opt: NPULossScaleOptimizer(opt, manager()),
    "scale together": lambda opt: NPULossScaleOptimizer(opt, manager(), is_distributed=True),
    "aggregate": NPUDistributedOptimizer,
    "npu": NPUOptimizer,
    "npu scale": lambda opt: NPUOptimizer(opt, manager(), is_loss_scale=True),
    "npu aggregate": lambda opt: NPUOptimizer(opt, is_distributed=True),
    "npu both": lambda opt: NPUOptimizer(opt, manager(), True, True),
    "Keras": keras.optimizers.LossScaleOptimizer,
}


def _steps(optimizer):
    """Two steps, the second with an overflow on the last rank."""
    v, w = weight([1.0, 2.0], name="v"), weight(np.ones((2, 2)), name="w")
    factor = float(optimizer.scale_loss(1.0))
    scales = optimizer._scaling.active
    for step in range(2):
        bad = scales and step == 1 and rank() == size() - 1
        gradients = [tf.fill([2], INF if bad else 1.0 + rank()), tf.fill([2, 2], 0.5)]
        optimizer.apply([g * factor for g in gradients], [v, w])
    return {
        "weights": digest([v, w]),
        "scales": scales,
        "aggregates": optimizer._aggregation is not None,
        "scale": float(optimizer.loss_scale),
        "iterations": int(optimizer.iterations),
    }


@check
def nestings():
    report = {}
    for name, innermost in INNERMOST.items():
        for depth in range(3 if name == "SGD" else 2):
            for wrappers in itertools.product(WRAPPERS, repeat=depth):
                report[" < ".join([name, *wrappers])] = _outcome(innermost, wrappers)
    return report


def _outcome(innermost, wrappers):
    optimizer = innermost()
    for wrapper in wrappers:
        try:
            optimizer = WRAPPERS[wrapper](optimizer)
        except TypeError:
            return "TypeError"
    if type(optimizer).__module__.startswith("keras"):
        return "Keras"
    return _steps(optimizer)
