# SPDX-License-Identifier: Apache-2.0
"""What scripts bring along: managers of their own, and mistakes that are pointed out."""

import warnings

import pytest
import tensorflow as tf
from loops import INF, WITHOUT_V2, manager, scaled, session, v1

from npu_keras import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)


class InGraph(LossScaleManager):
    """A user's manager in the style of TensorFlow 1."""

    def __init__(self):
        self.scale = v1.Variable(16.0, trainable=False, name="my_scale")

    def get_loss_scale(self):
        return self.scale

    def update_loss_scale(self, finite_grads):
        return v1.assign(self.scale, tf.where(finite_grads, self.scale + 1, self.scale / 2))


class InPython(LossScaleManager):
    def __init__(self):
        self.scale = 16.0

    def get_loss_scale(self):
        return self.scale

    def update_loss_scale(self, finite_grads):
        self.scale = self.scale + 1 if finite_grads else self.scale / 2


@pytest.mark.parametrize("kind", [InGraph, InPython])
def test_managers_of_the_user(graph, kind):
    variable = v1.Variable(1.0)
    x = v1.placeholder(tf.float32, [])
    mine = kind()
    optimizer = scaled(scale_manager=mine)
    ((gradient, _),) = pairs = optimizer.compute_gradients(variable * x, [variable])
    op = optimizer.apply_gradients(pairs)
    assert optimizer.loss_scale_manager is mine
    scales = []
    with session() as opened:
        assert opened.run(optimizer.loss_scale) == 16.0
        for feed in (1.0, INF, 1.0, 1.0):
            _, value = opened.run([op, gradient], {x: feed})
            assert value == feed
            scales.append(opened.run(optimizer.loss_scale))
        assert scales == [17.0, 8.5, 9.5, 10.5]
        held = mine.get_loss_scale()
        assert (held if isinstance(held, float) else opened.run(held)) == 10.5
        assert opened.run(variable) == 1.0 - 1.5
        with opened.as_default():
            (event,) = [each for each in optimizer.journal.drain() if each.skipped]
    assert (event.scale_before, event.scale_after) == (17.0, 8.5)


class Capped(ExponentialUpdateLossScaleManager):
    """Calls the rule of the class above, then cuts what it did."""

    def update_loss_scale(self, finite_grads):
        with tf.control_dependencies([super().update_loss_scale(finite_grads)]):
            return v1.assign(self._loss_scale, tf.minimum(self._loss_scale, 20.0))


class Lower(ExponentialUpdateLossScaleManager):
    def get_loss_scale(self):
        return super().get_loss_scale() / 4


class Contrib(ExponentialUpdateLossScaleManager):
    """The rule written out, with the names that TensorFlow 1's class has for its state."""

    def update_loss_scale(self, finite_grads):
        def grow():
            return self._move(self._incr_ratio)

        def shrink():
            return self._move(self._decr_ratio)

        def good():
            count = self._num_good_steps + 1
            more = lambda: v1.assign_add(self._num_good_steps, 1).op  # noqa: E731
            return tf.cond(count >= self._incr_every_n_steps, grow, more)

        def bad():
            count = self._num_bad_steps + 1
            more = lambda: v1.assign_add(self._num_bad_steps, 1).op  # noqa: E731
            return tf.cond(count >= self._decr_every_n_nan_or_inf, shrink, more)

        return tf.cond(finite_grads, good, bad)

    def _move(self, ratio):
        return tf.group(v1.assign(self._loss_scale, self._loss_scale * ratio), self._reset_stats())


class OwnVariables(FixedLossScaleManager):
    """Does not call the constructor above, and makes variables by itself."""

    def __init__(self, first, *others):
        self._loss_scale = v1.Variable(float(first), trainable=False, name="my_own")

    def update_loss_scale(self, finite_grads):
        return v1.assign_add(self._loss_scale, 1.0)


@pytest.mark.parametrize(
    "kind, scales",
    [
        (Capped, [16.0, 20.0, 10.0, 10.0, 20.0]),
        (Lower, [4.0, 8.0, 4.0, 4.0, 8.0]),
        (Contrib, [16.0, 32.0, 16.0, 16.0, 32.0]),
        (OwnVariables, [17.0, 18.0, 19.0, 20.0, 21.0]),
    ],
)
def test_managers_that_override_methods_of_a_builtin_one(graph, kind, scales):
    variable, x = v1.Variable(1.0), v1.placeholder(tf.float32, [])
    mine = kind(16.0, 2, 1, 2.0, 0.5)
    early = tf.identity(mine.get_loss_scale())
    optimizer = scaled(scale_manager=mine)
    used = []
    ((gradient, _),) = pairs = optimizer.compute_gradients(variable * x, [variable])
    op = optimizer.apply_gradients(pairs)
    with session() as opened:
        first = opened.run(optimizer.loss_scale)
        for feed in (1.0, 1.0, INF, 1.0, 1.0):
            assert opened.run([op, gradient], {x: feed})[1] == feed
            used.append(opened.run(optimizer.loss_scale))
            assert opened.run([early, mine.get_loss_scale()]) == [used[-1]] * 2
        assert used == scales
        assert opened.run(variable) == 1.0 - 4 * 0.5
        with opened.as_default():
            (event,) = [each for each in optimizer.journal.drain() if each.skipped]
    assert (event.scale_before, event.scale_after) == (scales[1], scales[2])
    assert first == {Lower: 4.0}.get(kind, 16.0)


def test_warning_for_a_script_that_scales_by_itself(graph):
    variable = v1.Variable(1.0)
    scale_manager = manager()
    optimizer = scaled(scale_manager=scale_manager)
    with pytest.warns(UserWarning, match="loss scale already") as caught:
        optimizer.compute_gradients(variable * 2.0 * scale_manager.get_loss_scale(), [variable])
    assert caught[0].filename == __file__


@pytest.mark.skipif(WITHOUT_V2, reason="has no tf.function")
def test_warning_for_a_function_that_scales_by_itself():
    variable = v1.Variable(1.0)
    optimizer = scaled()

    @tf.function
    def step():
        optimizer.minimize(lambda: variable * optimizer.loss_scale, var_list=[variable])

    with pytest.warns(UserWarning, match="loss scale already"):
        step()
    assert variable.numpy() == 1.0 - 0.5 * 8.0


def test_warning_for_gradients_that_were_never_scaled(graph):
    variable = v1.Variable(1.0)
    x = v1.placeholder(tf.float32, [])
    optimizer = scaled()
    gradients = tf.gradients(variable * x, [variable])
    with pytest.warns(UserWarning, match="compute_gradients") as caught:
        op = optimizer.apply_gradients(zip(gradients, [variable], strict=True))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.apply_gradients(zip(gradients, [variable], strict=True))
    with session() as opened:
        opened.run(op, {x: INF})
        opened.run(op, {x: 1.0})
        assert opened.run([variable, optimizer.loss_scale]) == [0.5, 4.0]


def test_scale_loss_is_refused():
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="compute_gradients"):
        scaled().scale_loss(1.0)
