# SPDX-License-Identifier: Apache-2.0
"""The numbers of a loss scale in a graph of TensorFlow 1, to be fetched by their names."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from npu_keras._upstream import is_usable_here
from npu_keras.loss_scale import ScaleState
from npu_keras.step import TF_NAMESPACE

_DTYPES = {"loss_scale": tf.float32, "good_steps": tf.int32, "bad_steps": tf.int32}


class GraphState:
    """Three variables, and their values as tensors: `loss_scale:0`, `good_steps:0`, `bad_steps:0`.

    In TensorFlow 1 a variable and its value had one name. Now the name of a variable is that of its
    handle, so that it is `loss_scaling/loss_scale` here, also in a checkpoint, and scripts that
    fetch `loss_scale:0` get a number: the one before the step, if they fetch both at once.

    Args:
        initial: the first state.
    """

    loss_scale: Any
    good_steps: Any
    bad_steps: Any

    def __init__(self, initial: ScaleState) -> None:
        with tf.init_scope():
            self.graph = tf.compat.v1.get_default_graph()
            self._values = [self._make(name, value) for name, value in initial._asdict().items()]

    def _make(self, name: str, value: Any) -> tf.Tensor:
        dtype = _DTYPES[name]
        variable = tf.compat.v1.Variable(
            lambda: tf.cast(value, dtype),
            trainable=False,
            use_resource=True,
            name=f"loss_scaling/{name}",
        )
        setattr(self, name, variable)
        return tf.identity(variable, name=name)

    def named_values(self) -> list[tf.Tensor]:
        """Returns the tensors that go by the names, if they can be reached from here."""
        return [value for value in self._values if is_usable_here(value.op)]

    def move(self, rule: Callable[..., ScaleState], finite: Any) -> tf.Operation:
        """Makes the op that takes the state through one step.

        Args:
            rule: `next_state` of a manager.
            finite: bool scalar, whether no gradient overflowed.
        """
        before = ScaleState(*map(tf.identity, self._variables()))
        return self._assign(rule(before, tf.cast(finite, tf.bool), TF_NAMESPACE), before)

    def reset(self) -> tf.Operation:
        """Makes the op that clears the counters."""
        return self._assign(ScaleState(None, 0, 0), [])

    def _assign(self, after: ScaleState, before: Any) -> tf.Operation:
        with tf.control_dependencies([*before, *self.named_values()]):
            pairs = zip(self._variables(), after, strict=True)
            given = [(variable, value) for variable, value in pairs if value is not None]
            return tf.group([v.assign(tf.cast(x, v.dtype), read_value=False) for v, x in given])

    def _variables(self) -> tuple[Any, ...]:
        return self.loss_scale, self.good_steps, self.bad_steps
