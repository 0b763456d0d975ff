# SPDX-License-Identifier: Apache-2.0
"""DenseDepth: `NPUOptimizer` around a TensorFlow 1 optimizer in `compile`, and a checkpoint."""

import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *

distributed = get_rank_size() > 1
learning_rate = tf.Variable(0.5, trainable=False, name="learning_rate")
loss_scale_manager = ExponentialUpdateLossScaleManager(2**32, 500, 2, 2.0, 0.8)
optimizer = NPUOptimizer(
    tf.train.AdamOptimizer(learning_rate),
    loss_scale_manager,
    is_distributed=True,
    is_loss_scale=True,
    is_tailing_optimization=distributed,
)
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(2,))]
)
model.compile(loss="mae", optimizer=optimizer)
session = tf.keras.backend.get_session()
session.run(learning_rate.initializer)
x = np.ones((4, 2), np.float32)
y = np.full((4, 1), -10.0 - 2 * get_rank_id(), np.float32)
model.fit(x, y, batch_size=4, epochs=2, verbose=0)
weights = model.get_weights()[0].ravel().tolist()
folder = tempfile.mkdtemp()
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
path = checkpoint.save(f"{folder}/checkpoint", session=session)
session.run([optimizer.good_steps.assign(0), optimizer.loss_scale.assign(1.0)])
model.set_weights([np.zeros((2, 1))])
status = checkpoint.restore(path).assert_existing_objects_matched()
status.run_restore_ops(session)
restored = model.get_weights()[0].ravel().tolist()
path = tf.train.Saver().save(session, f"{folder}/model")
tf.train.Saver().restore(session, path)
state = float(session.run(optimizer.loss_scale)), int(session.run(optimizer.good_steps))
RESULT = weights, restored, *state
