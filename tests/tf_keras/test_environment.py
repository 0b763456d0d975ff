# SPDX-License-Identifier: Apache-2.0
"""`tf.keras` is tf_keras under `TF_USE_LEGACY_KERAS=1`, and callbacks of tf_keras see the rate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tf_keras
from hosts import MAKERS, fit, small_model

ROOT = Path(__file__).parents[2]
SCRIPT = """
import tensorflow as tf
import npu_keras
from npu_keras.tf_keras import NPULossScaleOptimizer

tf.keras.mixed_precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
manager = npu_keras.FixedLossScaleManager(8)
optimizer = NPULossScaleOptimizer(tf.keras.optimizers.Adam(0.1), manager)
model.compile(optimizer, "mse")
model.fit(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)
print(model.optimizer is optimizer, int(optimizer.iterations))
try:
    npu_keras.NPULossScaleOptimizer(tf.keras.optimizers.Adam(), manager)
except TypeError as error:
    print("`npu_keras.tf_keras`" in str(error))
"""


def test_legacy_keras():
    env = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == ["True 1", "True"], done.stderr


@pytest.mark.parametrize("kind", ["wrapper", "legacy mixin"])
def test_callbacks_of_tf_keras(kind, tmp_path):
    model = small_model()
    callbacks = tf_keras.callbacks
    fit(
        model,
        MAKERS[kind]("SGD", learning_rate=0.5),
        epochs=3,
        callbacks=[
            callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=1e9),
            callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.tf"), save_weights_only=True),
            callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras")),
        ],
    )
    assert float(model.optimizer.learning_rate) == 0.125  # after the second and the third epoch
    assert len(list(tmp_path.glob("*.keras"))) == 3
    again = small_model()
    again.compile(MAKERS[kind]("SGD", learning_rate=0.5), "mse")
    again.load_weights(tmp_path / "3.weights.tf").expect_partial()
    again.optimizer.build(again.trainable_variables)
    assert int(again.optimizer.attempted_steps) == 24
    if kind == "wrapper":
        loaded = tf_keras.models.load_model(tmp_path / "2.keras")
        assert int(loaded.optimizer.attempted_steps) == 16
