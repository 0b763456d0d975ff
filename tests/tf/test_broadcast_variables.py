# SPDX-License-Identifier: Apache-2.0
"""On several ranks it is tested in tests/distributed/test_uneven.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from npu_keras import distribute
from npu_keras.callbacks import BroadcastVariables, broadcast_variables


def compiled(*first):
    model = keras.Sequential([*first, keras.layers.Dense(2), keras.layers.BatchNormalization()])
    model.compile(keras.optimizers.Adam(0.1), loss="mse")
    return model


def fit(model, callback):
    x = np.ones((4, 3), "float32")
    model.fit(x, x[:, :2], batch_size=2, verbose=0, callbacks=[callback])


@pytest.fixture
def sent(monkeypatch):
    """Two ranks, as far as the callback can see, and the variables that it sends."""
    sent = []
    monkeypatch.setattr(distribute, "size", lambda: 2)
    monkeypatch.setattr(
        distribute, "broadcast", lambda variables, root_rank: sent.append((variables, root_rank))
    )
    return sent


def test_one_rank_alone_sends_nothing(monkeypatch):
    monkeypatch.delattr(broadcast_variables, "require_same_everywhere")
    fit(compiled(keras.Input((3,))), BroadcastVariables())


def test_it_sends_weights_and_the_optimizers_variables_once_in_a_training(sent):
    model, callback = compiled(keras.Input((3,))), BroadcastVariables(root_rank=1)
    fit(model, callback)
    [(variables, root_rank)] = sent
    assert root_rank == 1
    assert [id(v) for v in variables] == [
        id(v) for v in [*model.weights, *model.optimizer.variables]
    ]
    assert len(model.optimizer.variables) == 2 + 2 * 4
    fit(model, callback)
    assert len(sent) == 2


def test_an_optimizer_says_itself_what_every_rank_has(sent):
    model = compiled(keras.Input((3,)))
    model.optimizer._own_variables = lambda: [model.optimizer.iterations]
    fit(model, BroadcastVariables())
    assert sent[0][0][-1] is model.optimizer.iterations
    assert len(sent[0][0]) == len(model.weights) + 1


def test_a_model_without_weights_is_refused_at_the_first_batch(sent):
    callback = BroadcastVariables()
    callback.set_model(compiled())
    callback.on_train_begin()
    with pytest.raises(ValueError, match="call `model.build"):
        callback.on_train_batch_begin(0)
    callback.model.build((None, 3))
    callback.on_train_batch_begin(0)
    assert len(sent) == 1


def test_equal_steps_keeps_the_whole_dataset_of_one_rank_and_refuses_an_unknown_number():
    data = tf.data.Dataset.range(7).batch(2)
    assert [batch.tolist() for batch in distribute.equal_steps(data).as_numpy_iterator()] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6],
    ]
    for unsure in (data.repeat(), data.filter(lambda batch: tf.size(batch) == 2)):
        with pytest.raises(ValueError, match=r"on ranks \[0\]. Cut it with `dataset.take"):
            distribute.equal_steps(unsure)
