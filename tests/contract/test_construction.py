# SPDX-License-Identifier: Apache-2.0
"""How optimizers are put into each other, what is refused, and what is kept in a checkpoint."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from flavours import FLAVOURS, INF, assert_bit_equal, manager, steps

from npu_keras import FixedLossScaleManager, GradientAggregation, NPURunConfig

GRADIENTS = [(1.0, [2.0, 3.0]), (INF, [1.0, 1.0]), (0.5, [1.0, -1.0])]


@pytest.fixture(autouse=True)
def no_run_config():
    yield
    NPURunConfig.clear()


def both(flavour, order):
    """Loss scaling and aggregation by two wrappers, one in the other."""
    home, inner = flavour.home, flavour.adam(0.1)
    if order == "scaling outside":
        return home.NPULossScaleOptimizer(home.NPUDistributedOptimizer(inner), manager())
    return home.NPUDistributedOptimizer(home.NPULossScaleOptimizer(inner, manager()))


def test_both_nestings_take_the_steps_of_one_wrapper(flavour):
    values = [1.0, [1.0, 1.0]]
    whole = steps(
        flavour.run(lambda f: f.scaled(f.adam(0.1), is_distributed=True), values), GRADIENTS
    )
    for order in ("scaling outside", "scaling inside"):
        run = steps(flavour.run(lambda f: both(f, order), values), GRADIENTS)  # noqa: B023
        assert_bit_equal(run.weights(), whole.weights())
        assert (run.scale(), run.counters()) == (whole.scale(), whole.counters())
        assert [event.kind for event in run.events()] == ["back off"]


def test_what_is_done_already_cannot_be_asked_for_again(flavour):
    home = flavour.home
    scaled = home.NPULossScaleOptimizer(flavour.sgd(), manager())
    with pytest.raises(TypeError, match="scales the loss already"):
        home.NPULossScaleOptimizer(scaled, manager())
    with pytest.raises(TypeError, match="scales the loss already"):
        home.NPUOptimizer(scaled, manager(), is_loss_scale=True)
    with pytest.raises(TypeError, match="aggregates gradients already"):
        home.NPUDistributedOptimizer(home.NPUDistributedOptimizer(flavour.sgd()))
    inner = flavour.sgd()
    first = home.NPULossScaleOptimizer(inner, manager())
    with pytest.raises(TypeError, match="already belongs to another wrapper"):
        home.NPULossScaleOptimizer(inner, manager())
    assert first.inner_optimizer is inner


def test_signatures_are_the_documented_ones(flavour):
    home, sgd = flavour.home, flavour.sgd
    parameters = [
        list(inspect.signature(cls).parameters)
        for cls in (home.NPUOptimizer, home.NPULossScaleOptimizer, home.NPUDistributedOptimizer)
    ]
    flags = ["is_distributed", "is_loss_scale", "is_tailing_optimization", "name"]
    assert parameters == [
        ["opt", "loss_scale_manager", *flags, "overflow_mode", "aggregation"],
        ["opt", "loss_scale_manager", "is_distributed", "overflow_mode"],
        ["optimizer", "is_weight_update_sharding", "name", "aggregation"],
    ]
    assert home.NPUDistributedOptimizer(sgd(), False, "mine")._given_name == "mine"
    given = home.NPUOptimizer(sgd(), manager(), False, True, False, "mine")
    assert given._given_name == "mine"


def test_bad_arguments(flavour):
    home, sgd = flavour.home, flavour.sgd
    with pytest.raises(ValueError, match="needs a `loss_scale_manager`"):
        home.NPUOptimizer(sgd(), is_loss_scale=True)
    with pytest.warns(UserWarning, match="has no effect without `is_loss_scale=True`"):
        home.NPUOptimizer(sgd(), manager())
    with pytest.raises(ValueError, match="no effect without `is_distributed=True`"):
        home.NPUOptimizer(sgd(), aggregation=GradientAggregation())
    with pytest.raises(TypeError, match="must be a `npu_keras.LossScaleManager`"):
        home.NPULossScaleOptimizer(sgd(), 1024)
    with pytest.raises(ValueError, match="`overflow_mode` must be one of"):
        home.NPULossScaleOptimizer(sgd(), manager(), overflow_mode="clamp")
    with pytest.raises(TypeError, match=r"Did you mean `is_loss_scale`\?"):
        home.NPUOptimizer(sgd(), is_loss_scaled=True)
    NPURunConfig(is_tailing_optimization=True)
    with pytest.raises(ValueError, match="must agree"):
        home.NPUOptimizer(sgd(), is_distributed=True)


def test_optimizers_of_another_home_are_sent_there(flavour):
    others = {
        "npu_keras": keras.optimizers.SGD(),
        "npu_keras.tf_keras": tf_keras.optimizers.SGD(),
        "npu_keras.v1": tf.compat.v1.train.GradientDescentOptimizer(1.0),
    }
    own = flavour.home.__name__
    for home, optimizer in others.items():
        if home == own:
            continue
        for name in ("NPUOptimizer", "NPUDistributedOptimizer"):
            with pytest.raises(TypeError, match=f"`{home}`"):
                getattr(flavour.home, name)(optimizer)
    for nothing in ("sgd", None, object()):
        with pytest.raises(TypeError, match="`opt` must be"):
            flavour.home.NPUDistributedOptimizer(nothing)


def test_one_manager_serves_one_optimizer(flavour):
    shared = manager()
    first = flavour.run(lambda f: f.scaled(scale_manager=shared), [1.0])
    first.step(1.0)
    with pytest.raises(ValueError, match="needs its own loss-scale manager"):
        flavour.run(lambda f: f.scaled(scale_manager=shared), [1.0]).step(1.0)


def test_the_tail_without_ranks_is_ignored(flavour):
    run = flavour.run(lambda f: f.scaled(f.sgd(), is_tailing_optimization=True), [1.0])
    steps(run, [(1.0,), (INF,)])
    assert (float(run.weights()[0]), run.counters()["skipped_steps"]) == (0.0, 1)


def test_a_checkpoint_holds_scale_counters_journal_and_slots(flavour, tmp_path):
    make = lambda f: f.scaled(f.adam(0.1), manager(64.0, grow=3))  # noqa: E731
    values = [1.0, [1.0, 1.0]]
    run = steps(flavour.run(make, values), GRADIENTS)
    path = run.save(str(tmp_path / "saved"))
    again = flavour.run(make, values)
    again.step(1.0, [1.0, 1.0])  # the variables exist
    again.restore(path)
    assert (
        (again.scale(), again.counters())
        == (run.scale(), run.counters())
        == (
            32.0,
            {"good_steps": 1, "bad_steps": 0, "attempted_steps": 3, "skipped_steps": 1},
        )
    )
    assert [event.attempt for event in again.events()] == [2]
    for each in (run, again):
        steps(each, GRADIENTS)
    assert_bit_equal(again.weights(), run.weights())
    assert again.counters() == run.counters()


def test_managers_give_the_scale_of_their_optimizer(flavour):
    scale = manager(8.0)
    run = flavour.run(lambda f: f.scaled(scale_manager=scale), [1.0])
    assert float(np.float32(scale.initial_state().loss_scale)) == 8.0
    run.step(INF)
    assert float(run.read([scale.get_loss_scale()])[0]) == 4.0


def test_fixed_scales_do_not_move(flavour):
    run = flavour.run(lambda f: f.scaled(scale_manager=FixedLossScaleManager(8)), [1.0])
    steps(run, [(INF,), (1.0,), (INF,)])
    assert run.scale() == 8.0
    assert [event.kind for event in run.events()] == ["skip", "skip"]


def test_eager_steps_are_those_of_a_function():
    for flavour in FLAVOURS:
        if flavour.name == "v1 graph":
            continue
        runs = [
            flavour.run(lambda f: f.scaled(f.adam(0.1)), [1.0, [1.0, 1.0]], eager=e) for e in (0, 1)
        ]
        for run in runs:
            steps(run, GRADIENTS)
        for mine, its in zip(runs[0].weights(), runs[1].weights(), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-6, err_msg=flavour.name)
        assert runs[0].counters() == runs[1].counters()
