# SPDX-License-Identifier: Apache-2.0
"""What the constructors take and refuse, and wrappers around wrappers."""

import keras
import pytest
import tensorflow as tf
from loops import WITHOUT_V2, manager, scaled, session, v1

import npu_keras
from npu_keras.v1 import NPUDistributedOptimizer, NPULossScaleOptimizer, NPUOptimizer


def sgd():
    return v1.train.GradientDescentOptimizer(0.5)


@pytest.fixture(autouse=True)
def in_graph(graph):
    return graph


@pytest.mark.parametrize(
    "nest",
    [
        lambda: NPULossScaleOptimizer(NPUDistributedOptimizer(sgd()), manager(grow=1)),
        lambda: NPUDistributedOptimizer(NPULossScaleOptimizer(sgd(), manager(grow=1))),
        lambda: NPUOptimizer(
            opt=sgd(),
            loss_scale_manager=manager(grow=1),
            is_distributed=True,
            is_loss_scale=True,
            is_tailing_optimization=False,
            name="own",
        ),
    ],
    ids=["scale outside", "scale inside", "both in one"],
)
def test_every_nesting_takes_the_same_step(nest):
    variable = v1.Variable(1.0, name="w")
    optimizer = nest()
    assert isinstance(optimizer, v1.train.Optimizer)
    assert optimizer.loss_scale.name == "loss_scaling/loss_scale:0"
    op = optimizer.minimize(variable * 0.5)
    with session() as opened:
        opened.run(op)
        assert opened.run([variable, optimizer.loss_scale]) == [0.75, 16.0]
        with opened.as_default():
            (event,) = optimizer.journal.drain()
            assert list(optimizer.journal.overflows_by_variable()) == ["w"]
    assert (event.kind, event.attempt) == ("grow", 1)


def test_without_scaling_everything_is_applied():
    variable = v1.Variable(1.0)
    x = v1.placeholder(tf.float32, [])
    optimizer = NPUOptimizer(v1.train.AdamOptimizer(0.5))
    assert optimizer.get_name() == "NPUOptimizerAdamOptimizer"
    op = optimizer.minimize(variable * x)
    with session() as opened:
        opened.run(op, {x: 2.0})
        opened.run(op, {x: 2.0})
        assert opened.run(variable) == pytest.approx(0.0, abs=1e-5)
        assert opened.run(optimizer.attempted_steps) == 2
    names = [v.name for v in v1.global_variables()]
    assert not [name for name in names if "loss_scaling" in name]


@pytest.mark.parametrize(
    "nest",
    [
        lambda: NPULossScaleOptimizer(scaled(), manager()),
        lambda: NPUOptimizer(scaled(), manager(), is_loss_scale=True),
        lambda: NPUDistributedOptimizer(NPUDistributedOptimizer(sgd())),
        lambda: NPUDistributedOptimizer(NPUOptimizer(sgd(), is_distributed=True)),
    ],
)
def test_twice_is_refused(nest):
    with pytest.raises(TypeError, match="already"):
        nest()


def test_one_inner_optimizer_has_one_wrapper():
    inner = sgd()
    first = scaled(inner)
    with pytest.raises(TypeError, match="already belongs to another wrapper"):
        scaled(inner)
    assert first.inner_optimizer is inner


def test_one_manager_has_one_optimizer():
    shared = manager()
    first = scaled(scale_manager=shared)
    with pytest.raises(ValueError, match="Each optimizer needs its own loss-scale manager"):
        scaled(scale_manager=shared)
    assert first.loss_scale_manager is shared


@pytest.mark.skipif(WITHOUT_V2, reason="Keras 3 needs the behaviour of v2")
@pytest.mark.parametrize("cls", [NPUOptimizer, NPUDistributedOptimizer, NPULossScaleOptimizer])
def test_optimizers_of_other_hosts(cls):
    arguments = [manager()] if cls is NPULossScaleOptimizer else []
    with tf.init_scope(), pytest.raises(TypeError, match="class of the same name in `npu_keras`"):
        cls(keras.optimizers.SGD(), *arguments)
    with pytest.raises(TypeError, match="must be a tf.compat.v1.train optimizer"):
        cls("adam", *arguments)
    with pytest.raises(TypeError, match="must be a tf.compat.v1.train optimizer"):
        cls(v1.train.AdamOptimizer, *arguments)


@pytest.mark.skipif(WITHOUT_V2, reason="Keras 3 needs the behaviour of v2")
def test_keras_classes_name_this_module():
    with pytest.raises(TypeError, match=r"`npu_keras\.v1`"):
        npu_keras.NPUOptimizer(sgd())
    tf_keras = pytest.importorskip("tf_keras")
    with pytest.raises(TypeError, match=r"`npu_keras\.tf_keras`"):
        NPUOptimizer(tf_keras.optimizers.SGD())


def test_arguments_that_contradict_each_other():
    with pytest.raises(ValueError, match="needs a `loss_scale_manager`"):
        NPUOptimizer(sgd(), is_loss_scale=True)
    with pytest.warns(UserWarning, match="no effect without `is_loss_scale=True`"):
        NPUOptimizer(sgd(), manager())
    with pytest.raises(ValueError, match="no effect without `is_distributed=True`"):
        NPUOptimizer(sgd(), aggregation=npu_keras.GradientAggregation())
    with pytest.raises(ValueError, match="overflow_mode"):
        scaled(overflow_mode="wrap")
    with pytest.raises(ValueError, match="would save no memory"):
        NPUDistributedOptimizer(sgd(), is_weight_update_sharding=True)
    with pytest.raises(TypeError, match="loss_scale_manager"):
        NPULossScaleOptimizer(sgd(), 1024)


def test_unknown_variable():
    first = v1.Variable(1.0, name="first")
    optimizer = scaled()
    optimizer.minimize(first * 1.0)
    later = v1.Variable(1.0, name="later")
    with pytest.raises(ValueError, match="later:0"):
        optimizer.minimize(later * 1.0, var_list=[later])


@pytest.mark.skipif(WITHOUT_V2, reason="strategies need the behaviour of v2")
def test_strategies_are_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with tf.init_scope():
        variable, optimizer = v1.Variable(1.0), scaled()
        with pytest.raises(ValueError, match="does not work under a `tf.distribute` strategy"):
            strategy.run(lambda: optimizer.minimize(lambda: variable * 1.0, var_list=[variable]))
