# SPDX-License-Identifier: Apache-2.0
"""Saturating arithmetic at the granularity of layers, and the flag that alone tells of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import npu_keras
import npu_keras.tf_keras
from npu_keras.ascend import saturating
from npu_keras.ascend.saturation import StatusFlag
from npu_keras.overflow import _installed_status

pytestmark = pytest.mark.tf

MAX = 65504.0
FLAVOURS = {"keras": (keras, npu_keras), "tf_keras": (tf_keras, npu_keras.tf_keras)}


@pytest.fixture(params=FLAVOURS)
def flavour(request):
    """A Keras, its optimizers of this package, and the float16 policy in it."""
    keras.config.set_dtype_policy("mixed_float16")
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    yield FLAVOURS[request.param]
    keras.config.set_dtype_policy("float32")
    tf_keras.mixed_precision.set_global_policy("float32")


def chain(library, *layers):
    model = library.Sequential([*layers, library.layers.Activation("linear", dtype="float32")])
    model.build((None, 1))
    return model


def dense(library, weight=1.0):
    start = library.initializers.Constant(weight)
    return library.layers.Dense(1, use_bias=False, kernel_initializer=start)


def gradients(model, x, scale):
    """The gradients of `scale * model(x)` for the input and the weights."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x)) * scale
    weights = [npu_keras.state.native(v) for v in model.trainable_variables]
    return [g.numpy().item() for g in tape.gradient(loss, [x, *weights])]


def test_forward_results_are_clamped(flavour):
    library, _ = flavour
    model = chain(library, dense(library, 60000.0))
    x = np.array([[2.0], [-2.0], [1.0]], np.float32)
    plain = model(x).numpy().ravel()
    with saturating(model) as flag:
        assert not flag.get()
        inside = model(x).numpy().ravel()
        assert flag.get()
    assert plain.tolist()[:2] == [float("inf"), float("-inf")]
    assert inside.tolist() == [MAX, -MAX, plain[2]]
    assert model(x).numpy().ravel().tolist() == plain.tolist()


def test_nan_becomes_zero(flavour):
    library, _ = flavour
    nothing = library.layers.Lambda(lambda x: x * 0.0) if library is tf_keras else None
    layer = nothing or library.layers.Rescaling(0.0)
    model = chain(library, layer)
    with saturating(model) as flag:
        assert model(np.array([[np.inf]], np.float32)).numpy().item() == 0.0
        assert flag.get()


def test_gradients_are_clamped_on_their_way(flavour):
    """70000 overflows as it comes into the last layer; below it 65504 is what arrives."""
    library, _ = flavour
    model = chain(library, dense(library, 1.0), dense(library, 0.5))
    x = np.array([[1.0]], np.float32)
    assert gradients(model, x, 70000.0) == [float("inf")] * 3
    with saturating(model) as flag:
        assert gradients(model, x, 60000.0) == [30000.0, 30000.0, 60000.0]
        assert not flag.get()
        assert gradients(model, x, 70000.0) == [32752.0, 32752.0, MAX]
        assert flag.get()


def test_gradients_of_weights_are_clamped(flavour):
    """What comes in is finite, the gradient of the weight, 4 times as large, is not."""
    library, _ = flavour
    model = chain(library, dense(library, 0.5))
    with saturating(model) as flag:
        to_input, to_weight = gradients(model, np.array([[4.0]], np.float32), 30000.0)
        assert (to_input, to_weight) == (15000.0, MAX)
        assert flag.get()


class NeverCleared(StatusFlag):
    def clear(self):
        pass


class ClearedEarly(StatusFlag):
    def get(self):
        self.clear()
        return super().get()


def fitted(flavour, mode="saturation", status=None, steps=1, eager=True):
    """The optimizer, and the weights after each step; the first step alone overflows."""
    library, package = flavour
    model = chain(library, dense(library))
    manager = npu_keras.ExponentialUpdateLossScaleManager(2.0**12, 1000, 1, 2.0, 0.5)
    inner = library.optimizers.SGD(2.0**-12)
    optimizer = package.NPULossScaleOptimizer(inner, manager, overflow_mode=mode)
    model.compile(optimizer, loss=lambda y_true, y_pred: y_pred, run_eagerly=eager)
    weights = []
    with saturating(model) as flag:
        if status is not None:
            flag.__class__ = status
        for x in (32.0, *[0.5] * steps):
            model.fit(np.full((1, 1), x, np.float32), np.zeros((1, 1)), verbose=0)
            weights.append(model.get_weights()[0].item())
    return optimizer, weights


@pytest.mark.parametrize("eager", [False, True])
def test_saturation_mode_reads_the_flag(flavour, eager):
    optimizer, weights = fitted(flavour, eager=eager)
    assert weights == [1.0, 1.0 - 0.5 * 2.0**-12]
    assert (int(optimizer.skipped_steps), float(optimizer.loss_scale)) == (1, 2.0**11)


def test_without_the_flag_only_finite_numbers_are_seen(flavour):
    """A clamped gradient, half of the true one, is applied."""
    optimizer, weights = fitted(flavour, "inf_nan")
    assert weights[0] == pytest.approx(1.0 - MAX / 2.0**12 * 2.0**-12, rel=1e-7)
    assert weights[0] != pytest.approx(1.0 - 32.0 * 2.0**-12, rel=1e-4)
    assert int(optimizer.skipped_steps) == 0


def test_a_flag_that_nobody_clears_marks_the_next_step():
    keras.config.set_dtype_policy("mixed_float16")
    optimizer, weights = fitted(FLAVOURS["keras"], status=NeverCleared, steps=2)
    keras.config.set_dtype_policy("float32")
    assert weights == [1.0, 1.0, 1.0]
    assert int(optimizer.skipped_steps) == 3


def test_a_flag_that_is_cleared_early_loses_the_step():
    keras.config.set_dtype_policy("mixed_float16")
    optimizer, weights = fitted(FLAVOURS["keras"], status=ClearedEarly)
    keras.config.set_dtype_policy("float32")
    assert weights[0] < 1.0
    assert int(optimizer.skipped_steps) == 0


def test_where_nothing_overflows_nothing_changes(flavour):
    """Masks, sparse gradients, recurrent layers, nested models, statistics: all go on as before."""
    library, _ = flavour
    layers = library.layers
    tokens = layers.Input((3,), dtype="int32")
    x = layers.Embedding(4, 2, mask_zero=True, embeddings_initializer="ones")(tokens)
    x = layers.SimpleRNN(2)(x)
    x = library.Sequential([layers.BatchNormalization(), layers.Dense(2)])(x)
    model = library.Model(tokens, layers.Dense(1, dtype="float32")(x))
    data = tf.constant([[1, 2, 0], [3, 0, 0]])
    weights = [npu_keras.state.native(v) for v in model.trainable_variables]

    def results():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(data, training=True) ** 2)
        return [tf.convert_to_tensor(g).numpy() for g in [loss, *tape.gradient(loss, weights)]]

    plain = results()
    with saturating(model) as flag:
        inside = results()
        assert not flag.get()
    assert len(model.layers[1].weights) == 1
    for ours, theirs in zip(inside, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_leaving_puts_everything_back(flavour):
    library, _ = flavour
    model = chain(library, dense(library))
    context = saturating(model)
    context.__enter__()
    assert "call" in vars(model.layers[0])
    assert not context.__exit__(KeyError, KeyError(), None)  # which goes on to the caller
    assert "call" not in vars(model.layers[0])
    assert _installed_status == []


def test_a_model_in_float32_is_refused():
    model = chain(keras, dense(keras))
    with pytest.raises(ValueError, match="layers that compute in float16"), saturating(model):
        pass
