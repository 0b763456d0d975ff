# SPDX-License-Identifier: Apache-2.0
"""Checks under `MultiWorkerMirroredStrategy`, in one process for each worker."""

import json
import os
import warnings

import keras
import numpy as np
import tensorflow as tf
from harness import INF, check, events, manager, run, weight

import npu_keras

STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()
WORKER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def _loop(optimizer, v, gradients):
    @tf.function(autograph=False)
    def step(gradient):
        def replica():
            optimizer.apply([gradient * tf.convert_to_tensor(optimizer.loss_scale)], [v])

        STRATEGY.run(replica)

    for values in gradients:
        step(tf.constant(values[WORKER], tf.float32))
        yield


def _made(inner, **settings):
    with warnings.catch_warnings(record=True) as caught, STRATEGY.scope():
        warnings.simplefilter("always")
        v = weight(0.0)
        optimizer = npu_keras.NPUOptimizer(inner(), manager(), is_loss_scale=True, **settings)
        optimizer.build([v])
    optimizer.scale_loss(0.0)
    return v, optimizer, [str(w.message) for w in caught if "model.fit" in str(w.message)]


@check
def custom_loop():
    v, optimizer, said = _made(lambda: keras.optimizers.SGD(0.1), is_distributed=True)
    steps = []
    for _ in _loop(optimizer, v, [(1, 2), (INF, 1), (1, INF), (INF, INF), (1, 1)]):
        steps.append([float(v.numpy()), float(optimizer.loss_scale)])
    return {"steps": steps, "events": events(optimizer), "said": said}


@check
def clipping_sees_the_sum():
    v, optimizer, _ = _made(lambda: keras.optimizers.SGD(1.0, global_clipnorm=1.0))
    for _ in _loop(optimizer, v, [(100, -0.2)]):
        pass
    return float(v.numpy())


@check
def fit():
    """What Keras 3 itself does, with an optimizer of its own."""
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 1)), np.ones((8, 1)))).batch(4)
    try:
        model.fit(data, verbose=0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    run(ranks=False)
