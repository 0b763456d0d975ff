# SPDX-License-Identifier: Apache-2.0
"""Subclasses of the managers of this package that override one of the two methods."""

import pytest
import tensorflow as tf
from scaled import INF, sgd, weight

from npu_keras import ExponentialUpdateLossScaleManager


class Halving(ExponentialUpdateLossScaleManager):
    """Half the scale of the class above, which moves by its rule."""

    def get_loss_scale(self):
        return super().get_loss_scale() / 2


class Watching(ExponentialUpdateLossScaleManager):
    """The rule of the class above and nothing else; steps are noted where Python runs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.calls = []

    def update_loss_scale(self, finite_grads):
        self.calls.append(finite_grads)
        return super().update_loss_scale(finite_grads)


@pytest.mark.parametrize(
    "cls, compiled, scales",
    [
        (Halving, None, [8.0, 4.0, 4.0, 8.0]),
        (Halving, False, [8.0, 4.0, 4.0, 8.0]),
        (Watching, None, [16.0, 8.0, 8.0, 16.0]),
        (Watching, False, [16.0, 8.0, 8.0, 16.0]),
        (Watching, True, [16.0, 8.0, 8.0, 16.0]),
    ],
)
def test_a_manager_that_overrides_one_method_of_a_builtin(cls, compiled, scales):
    scale_manager, variable = cls(16.0, 2, 1, 2.0, 0.5), weight(1.0)
    optimizer = sgd(scale_manager=scale_manager, rate=0.5)
    optimizer.build([variable])

    def step(x):
        optimizer.apply([optimizer.scale_loss(x)], [variable])

    step = step if compiled is None else tf.function(step, jit_compile=compiled)
    seen = []
    for value in (1.0, INF, 1.0, 1.0):
        step(tf.constant(value))
        seen.append(float(optimizer.loss_scale))
    assert seen == scales
    assert float(scale_manager.get_loss_scale()) == scales[-1]
    assert float(variable) == 1.0 - 3 * 0.5
    if cls is Watching:
        optimizer.loss_scale.assign(64.0)  # the optimizer's scale is the manager's
        step(tf.constant(INF))
        assert float(optimizer.loss_scale) == 32.0
        assert len(scale_manager.calls) == (1 if compiled else 5)
