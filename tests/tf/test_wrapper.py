# SPDX-License-Identifier: Apache-2.0
"""Never scaled twice, never scaled by nobody: what may be wrapped in what, and what is said."""

import gc
import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import INF, KINDS, apply, make, manager, mixin_class, sgd, weight

from npu_keras import (
    FixedLossScaleManager,
    LossScaleMixin,
    NPUDistributedOptimizer,
    NPULossScaleOptimizer,
    NPUOptimizer,
)

WRAPPERS = {
    "NPUOptimizer": lambda opt: NPUOptimizer(opt, manager(), is_loss_scale=True),
    "NPULossScaleOptimizer": lambda opt: NPULossScaleOptimizer(opt, manager()),
}


class TestWrappedTwice:
    @pytest.mark.parametrize("kind", KINDS)
    def test_keras_scaler_around_ours(self, kind):
        with pytest.raises(TypeError, match="cannot be wrapped in Keras' loss scaler"):
            keras.optimizers.LossScaleOptimizer(make(kind, learning_rate=0.1))

    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_ours_around_a_keras_scaler(self, wrapper):
        inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        with pytest.raises(TypeError, match="scales the loss already.*opt=LossScaleOptimizer"):
            WRAPPERS[wrapper](inner)

    @pytest.mark.parametrize("wrapper", WRAPPERS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_ours_around_ours(self, wrapper, kind):
        with pytest.raises(TypeError, match="scales the loss already"):
            WRAPPERS[wrapper](make(kind, learning_rate=0.1))

    @pytest.mark.parametrize("first", WRAPPERS)
    @pytest.mark.parametrize("second", WRAPPERS)
    def test_one_inner_optimizer_in_two_wrappers(self, first, second):
        inner = keras.optimizers.SGD(0.1)
        kept = WRAPPERS[first](inner)
        with pytest.raises(TypeError, match="already belongs to another wrapper"):
            WRAPPERS[second](inner)
        assert kept.inner_optimizer is inner

    def test_an_inner_optimizer_is_free_once_its_wrapper_is_gone(self):
        inner = keras.optimizers.SGD(0.1)
        wrapper = NPULossScaleOptimizer(inner, manager())
        del wrapper
        gc.collect()
        assert NPULossScaleOptimizer(inner, manager()).inner_optimizer is inner

    def test_a_wrapper_that_could_not_be_made_claims_nothing(self):
        inner = keras.optimizers.SGD(0.1)
        with pytest.raises(ValueError, match="overflow_mode"):
            NPULossScaleOptimizer(inner, manager(), overflow_mode="none")
        assert NPULossScaleOptimizer(inner, manager()).inner_optimizer is inner


class TestWrongArguments:
    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_no_optimizer_at_all(self, wrapper):
        for opt in ("adam", None, keras.optimizers.SGD):
            with pytest.raises(TypeError, match="`opt` must be a Keras 3 optimizer instance"):
                WRAPPERS[wrapper](opt)

    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_optimizers_of_other_homes(self, wrapper):
        with pytest.raises(TypeError, match=r"npu_keras\.v1"):
            WRAPPERS[wrapper](tf.compat.v1.train.GradientDescentOptimizer(0.1))
        tf_keras = pytest.importorskip("tf_keras")
        for namespace in (tf_keras.optimizers, tf_keras.optimizers.legacy):
            with pytest.raises(TypeError, match=r"npu_keras\.tf_keras"):
                WRAPPERS[wrapper](namespace.SGD(0.1))

    @pytest.mark.parametrize("wrong", [8.0, "dynamic", None, FixedLossScaleManager])
    def test_no_manager(self, wrong):
        with pytest.raises(TypeError, match="`loss_scale_manager` must be a"):
            NPULossScaleOptimizer(keras.optimizers.SGD(0.1), wrong)
        with pytest.raises(TypeError, match="`loss_scale_manager` must be a"):
            mixin_class(keras.optimizers.SGD)(0.1, loss_scale_manager=wrong)

    def test_mixin_behind_the_optimizer_class(self):
        with pytest.raises(TypeError, match=r"class Late\(LossScaleMixin, Adam\)"):
            type("Late", (keras.optimizers.Adam, LossScaleMixin), {})

    def test_mixin_behind_another_base_is_fine(self):
        named = type("Named", (), {"label": "x"})
        cls = type("Mixed", (named, LossScaleMixin, keras.optimizers.SGD), {})
        optimizer = cls(0.5, loss_scale_manager=manager())
        optimizer.scale_loss(0.0)
        variable = weight()
        apply(optimizer, variable, 1.0)
        assert float(variable) == 0.5


def linear_model(policy):
    """y = w x with w = 1, so that x = 1, y = 0 gives the gradient 2."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype=policy)
    return keras.Sequential([keras.layers.Input((1,)), dense])


def fit_once(model):
    x, y = np.ones((4, 1), "float32"), np.zeros((4, 1), "float32")
    model.fit(x, y, batch_size=4, verbose=0)
    return float(model.layers[-1].kernel.numpy()[0, 0])


class TestCompile:
    @pytest.mark.parametrize("kind, auto", [*((kind, True) for kind in KINDS), ("mixin", False)])
    def test_mixed_precision_leaves_ours_alone(self, kind, auto, tmp_path):
        keras.config.set_dtype_policy("mixed_float16")
        model, optimizer = linear_model("mixed_float16"), make(kind, learning_rate=0.1)
        model.compile(optimizer, loss="mse", auto_scale_loss=auto)
        assert model.optimizer is optimizer
        assert fit_once(model) == pytest.approx(0.8, rel=1e-3)

        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert type(again.optimizer) is type(optimizer)
        # w = 0.8 gives the gradient 1.6.
        assert fit_once(again) == pytest.approx(0.64, rel=1e-3)
        assert float(again.optimizer.loss_scale) == 8.0
        assert int(again.optimizer.good_steps) == 2

    @pytest.mark.parametrize("kind", KINDS)
    def test_pure_float16_weights(self, kind):
        """Keras itself would wrap nothing under this policy."""
        keras.config.set_dtype_policy("float16")
        model, optimizer = linear_model("float16"), make(kind, learning_rate=0.1)
        model.compile(optimizer, loss="mse", jit_compile=False)
        assert fit_once(model) == pytest.approx(0.8, rel=1e-3)
        assert model.layers[-1].kernel.dtype == "float16"
        assert int(optimizer.good_steps) == 1

    def test_the_scale_moves_in_fit(self):
        model = linear_model("mixed_float16")
        optimizer = make("NPUOptimizer", manager=manager(2.0**20, every=1), learning_rate=0.1)
        model.compile(optimizer, loss="mse")
        x, y = np.ones((40, 1), "float32"), np.zeros((40, 1), "float32")
        model.fit(x, y, batch_size=4, verbose=0)
        # The loss is scaled in float32 and its gradient, 2 * scale, arrives in float16: it fits
        # from a scale of 2**14 on.
        assert int(optimizer.skipped_steps) == 6
        assert float(optimizer.loss_scale) == 2.0**14
        assert float(model.layers[0].kernel.numpy()[0, 0]) == pytest.approx(0.8**4, rel=2e-3)


class TestNeverScaled:
    @pytest.mark.parametrize("kind", KINDS)
    def test_one_warning(self, kind):
        variable, optimizer = weight(), make(kind, learning_rate=0.5)
        with pytest.warns(UserWarning, match="no loss went through its `scale_loss`") as caught:
            optimizer.apply([tf.constant(8.0)], [variable])
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.apply([tf.constant(8.0)], [variable])
        assert float(variable) == 0.0

    def test_in_a_train_step(self):
        class Forgetful(keras.Model):
            def __init__(self):
                super().__init__()
                self.w = self.add_weight(shape=(), initializer="ones")

            def call(self, x):
                return self.w * x

            def train_step(self, pair):
                x, y = pair
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x) - y) ** 2)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
                return {"loss": loss}

        model = Forgetful()
        model.compile(make("NPUOptimizer", learning_rate=0.1))
        x, y = np.ones((8, 1), "float32"), np.zeros((8, 1), "float32")
        with pytest.warns(UserWarning, match="too small by that factor") as caught:
            model.fit(x, y, batch_size=4, epochs=2, verbose=0)
        assert len(caught) == 1

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_warning_when_scaled(self, kind):
        variable, optimizer = weight(), make(kind, learning_rate=0.5)
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(variable.value**2)
        optimizer.apply([tape.gradient(loss, variable.value)], [variable])
        assert float(variable) == 0.0


FLAGS = list(itertools.product([False, True], repeat=3))


class TestFlags:
    @pytest.mark.parametrize("distributed, scaled, tail", FLAGS)
    @pytest.mark.filterwarnings("ignore:`loss_scale_manager` has no effect")
    def test_every_combination_trains(self, distributed, scaled, tail):
        optimizer = NPUOptimizer(keras.optimizers.SGD(0.1), manager(), distributed, scaled, tail)
        model = linear_model("float32")
        model.compile(optimizer, loss="mse", jit_compile=False)
        assert fit_once(model) == pytest.approx(0.8, rel=1e-6)
        assert float(optimizer.loss_scale) == (8.0 if scaled else 1.0)
        assert int(optimizer.attempted_steps) == int(optimizer.iterations) == 1
        again = NPUOptimizer.from_config(optimizer.get_config())
        assert again.get_config() == optimizer.get_config()
        assert (again.is_distributed, again.is_loss_scale) == (distributed, scaled)
        assert again.is_tailing_optimization is tail

    def test_scaling_needs_a_manager(self):
        with pytest.raises(ValueError, match="`is_loss_scale=True` needs a `loss_scale_manager`"):
            NPUOptimizer(keras.optimizers.SGD(0.1), is_loss_scale=True)

    def test_a_manager_without_scaling(self):
        with pytest.warns(UserWarning, match="no effect without `is_loss_scale=True`") as caught:
            optimizer = NPUOptimizer(keras.optimizers.SGD(0.1), manager())
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert optimizer.get_config()["loss_scale_manager"] is not None

    def test_names(self):
        assert NPUOptimizer(keras.optimizers.Adam()).name == "NPUOptimizerAdam"
        assert NPUOptimizer(keras.optimizers.Adam(), name="mine").name == "mine"
        again = NPUOptimizer.from_config(NPUOptimizer(keras.optimizers.Lion()).get_config())
        assert again.name == "NPUOptimizerLion"

    def test_without_scaling_an_overflow_is_applied(self):
        variable, optimizer = weight(), NPUOptimizer(keras.optimizers.SGD(0.1))
        assert float(optimizer.scale_loss(3.0)) == 3.0
        optimizer.apply([tf.constant(INF)], [variable])
        assert float(variable) == -INF
        assert int(optimizer.skipped_steps) == 0
        assert int(optimizer.iterations) == 1

    def test_unguarded_float16(self):
        keras.config.set_dtype_policy("mixed_float16")
        model, optimizer = linear_model("mixed_float16"), NPUOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, loss="mse")
        with pytest.warns(UserWarning, match="nothing guards") as caught:
            fit_once(model)
        assert len(caught) == 1
        assert model.optimizer is optimizer

    @pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
    def test_other_policies_need_no_guard(self, policy):
        keras.config.set_dtype_policy(policy)
        model = linear_model(policy)
        model.compile(NPUOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        assert fit_once(model) == pytest.approx(0.8, rel=1e-2)


class TestForwarding:
    def test_hyperparameters_of_the_inner_optimizer(self):
        inner = keras.optimizers.Adam(0.25, beta_1=0.8, clipnorm=1.5, weight_decay=0.125)
        optimizer = NPULossScaleOptimizer(inner, manager())
        assert (optimizer.beta_1, optimizer.clipnorm, optimizer.weight_decay) == (0.8, 1.5, 0.125)
        assert float(optimizer.learning_rate) == 0.25
        optimizer.beta_1, optimizer.clipnorm, optimizer.learning_rate = 0.7, 2.5, 0.5
        assert (inner.beta_1, inner.clipnorm, float(inner.learning_rate)) == (0.7, 2.5, 0.5)
        with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
            optimizer.no_such_thing  # noqa: B018

    def test_weights_are_not_variables_of_the_optimizer(self):
        variable, optimizer = weight(), sgd()
        optimizer.build([variable])
        assert all(v is not variable for v in optimizer.variables)
        assert len(optimizer.variables) == 2 + 12 + 2

    def test_building_again_changes_nothing(self):
        variable, optimizer = weight(), sgd()
        optimizer.build([variable])
        before = optimizer.variables
        optimizer.build([variable])
        assert [id(v) for v in optimizer.variables] == [id(v) for v in before]

    def test_around_a_built_optimizer(self):
        variable = weight()
        inner = keras.optimizers.SGD(0.5, momentum=0.5)
        inner.apply([tf.constant(1.0)], [variable])
        optimizer = NPULossScaleOptimizer(inner, manager())
        optimizer.scale_loss(0.0)
        apply(optimizer, variable, 0.0)
        assert float(variable) == 0.5 - 0.25
        assert int(optimizer.iterations) == 2


class TestUnguarded:
    def test_a_distributed_optimizer_alone(self):
        keras.config.set_dtype_policy("mixed_float16")
        optimizer = NPUDistributedOptimizer(keras.optimizers.SGD(0.1))
        with pytest.warns(UserWarning, match="NPUDistributedOptimizer does not scale the loss"):
            optimizer.build([weight()])

    def test_a_distributed_optimizer_inside_a_scaling_one(self):
        keras.config.set_dtype_policy("mixed_float16")
        inner = NPUDistributedOptimizer(keras.optimizers.SGD(0.5))
        optimizer = NPULossScaleOptimizer(inner, manager())
        optimizer.scale_loss(0.0)
        variable = weight()
        apply(optimizer, variable, 1.0, INF)
        assert float(variable) == 0.5
        assert int(optimizer.skipped_steps) == 1

    def test_a_static_scale_of_the_inner_optimizer_is_a_guard(self):
        keras.config.set_dtype_policy("mixed_float16")
        inner = keras.optimizers.SGD(0.5, loss_scale_factor=64.0)
        optimizer, variable = NPUOptimizer(inner), weight()
        optimizer.apply([tf.constant(64.0)], [variable])
        assert float(variable) == 0.5
