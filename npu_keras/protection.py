# SPDX-License-Identifier: Apache-2.0
"""Values that a skipped step must not change although the forward pass has written them.

Batch-normalisation statistics, seed states and the running loss are written before anybody knows
whether the step will be skipped. They are remembered after each applied step and put back by a
skipped one.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


class Protection:
    """Pairs of a variable and the value it had after the last applied step."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[tf.Variable, tf.Variable]] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, variables: Iterable[Any]) -> bool:
        """Protects variables from now on, and takes their present values as the good ones.

        Args:
            variables: Keras or TensorFlow variables of any shape and dtype. One that is already
                protected is remembered anew, as is needed after it was reset from outside.

        Returns:
            True when a variable was added, so that a step traced before does not know of it.
        """
        before = len(self._pairs)
        for variable in variables:
            native = getattr(variable, "value", variable)
            if not isinstance(native, tf.Variable):
                raise TypeError(
                    "`protect` takes Keras or TensorFlow variables, for example "
                    f"`model.non_trainable_variables`. Received: {variable!r}"
                )
            self._remember_outside(native)
        return len(self._pairs) > before

    def _remember_outside(self, variable: tf.Variable) -> None:
        if id(variable) in self._pairs:
            _copy(*self._pairs[id(variable)])
            return
        with tf.init_scope():
            self._pairs[id(variable)] = (variable, _twin(variable))

    def remember(self) -> None:
        """Takes the present values as the good ones (in the graph, after an applied step)."""
        for variable, kept in self._pairs.values():
            kept.assign(variable)

    def restore(self) -> None:
        """Puts the last good values back (in the graph, in a skipped step)."""
        for variable, kept in self._pairs.values():
            variable.assign(kept)


def _twin(variable: tf.Variable) -> tf.Variable:
    return tf.Variable(variable, trainable=False, dtype=variable.dtype, name="last_good")


def _copy(variable: tf.Variable, kept: tf.Variable) -> None:
    kept.assign(variable)
