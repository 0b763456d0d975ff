# SPDX-License-Identifier: Apache-2.0
"""Values that a skipped step must not change although the forward pass has written them.

Batch-normalisation statistics, seed states and the running loss are written before anybody knows
whether the step will be skipped. They are remembered after each applied step and put back by a
skipped one.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from npu_keras.inputs import variable_list
from npu_keras.state import native


class Protection:
    """Pairs of a variable and the value it had after the last applied step."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[tf.Variable, tf.Variable]] = {}
        self._copies: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def variables(self) -> list[tf.Variable]:
        """Returns all variables that `remember` and `restore` write."""
        return [variable for pair in self._pairs.values() for variable in pair]

    def add(self, variables: Iterable[Any]) -> bool:
        """Protects variables from now on, and takes their present values as the good ones.

        Args:
            variables: Keras or TensorFlow variables of any shape and dtype. One that is already
                protected is remembered anew, as is needed after it was reset from outside.

        Returns:
            True when a variable was added, so that a step traced before does not know of it.
        """
        before = len(self._pairs)
        for variable in variable_list("`variables`", variables, "model.non_trainable_variables"):
            self._remember_outside(native(variable))
        return len(self._pairs) > before

    def _remember_outside(self, variable: tf.Variable) -> None:
        if id(variable) in self._pairs:
            if id(variable) not in self._copies:  # one function for all epochs, traced once
                self._copies[id(variable)] = _copier(*reversed(self._pairs[id(variable)]))
            self._copies[id(variable)]()
            return
        with tf.init_scope(), _scope_of(variable):
            self._pairs[id(variable)] = (variable, _twin(variable))

    def remember(self) -> None:
        """Takes the present values as the good ones (in the graph, after an applied step)."""
        for variable, kept in self._pairs.values():
            _assign(kept, variable)

    def restore(self) -> None:
        """Puts the last good values back (in the graph, in a skipped step)."""
        for variable, kept in self._pairs.values():
            _assign(variable, kept)


def _twin(variable: tf.Variable) -> tf.Variable:
    if not tf.executing_eagerly():
        return _twin_in_graph(variable)
    kept = tf.Variable(
        tf.zeros(variable.shape, variable.dtype),
        trainable=False,
        synchronization=variable.synchronization,
        aggregation=variable.aggregation,
        name="last_good",
    )
    _assign(kept, variable)
    return kept


def _twin_in_graph(variable: tf.Variable) -> tf.Variable:
    # Both are initialized in one go, in any order: whoever comes first initializes the other.
    return tf.compat.v1.Variable(
        lambda: tf.compat.v1.Variable.initialized_value(variable),
        dtype=variable.dtype.base_dtype,
        trainable=False,
        use_resource=True,
        name="last_good",
    )


def _scope_of(variable: tf.Variable) -> Any:
    strategy = getattr(variable, "distribute_strategy", None)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def _assign(target: tf.Variable, source: tf.Variable) -> None:
    _copier(target, source)()


def _copier(target: tf.Variable, source: tf.Variable) -> Callable[[], None]:
    """Copies in every replica, where the replicas hold different values (sums of a metric)."""
    copy = functools.partial(_copy, target, source)
    on_read = target.synchronization == tf.VariableSynchronization.ON_READ
    strategy = getattr(target, "distribute_strategy", None)
    if not on_read or strategy is None or not tf.distribute.in_cross_replica_context():
        return copy
    in_replicas = functools.partial(strategy.extended.call_for_each_replica, copy)
    # As a `tf.function`, since a strategy warns of what runs eagerly in its replicas.
    return tf.function(in_replicas, autograph=False) if tf.executing_eagerly() else in_replicas


def _copy(target: tf.Variable, source: tf.Variable) -> None:
    value: Any = source
    if source.dtype != source.dtype.base_dtype:
        # A reference variable of TensorFlow 1: it is written in place, where others see it.
        value = tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(source))
    target.assign(value)
