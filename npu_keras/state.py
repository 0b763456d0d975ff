# SPDX-License-Identifier: Apache-2.0
"""The variables of a loss-scaled optimizer: the scale, the counters and the ring of events.

Every flavour of host creates the same variables in the same order, so that their order is a
file format (Keras stores optimizer variables by position).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from npu_keras.loss_scale import ScaleState

RING_ROWS = 512
"""Events kept in the optimizer; older ones are counted as lost when nobody drained them."""

RING_COLUMNS = 12
"""Integers of one event (see `npu_keras.journal`); the last ones are spare."""


class VariableSpec(NamedTuple):
    """What a host has to create: a non-trainable variable of this name, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    initial_value: float | int | bool


def specs(initial: ScaleState) -> tuple[VariableSpec, ...]:
    """The variables that exist from construction on, in their order.

    Args:
        initial: the manager's first state; only its loss scale is used.
    """
    return (
        VariableSpec("loss_scale", "float32", (), float(initial.loss_scale)),
        VariableSpec("good_steps", "int64", (), 0),
        VariableSpec("bad_steps", "int64", (), 0),
        VariableSpec("attempted_steps", "int64", (), 0),
        VariableSpec("skipped_steps", "int64", (), 0),
        VariableSpec("last_step_finite", "bool", (), True),
        VariableSpec("scale_growths", "int64", (), 0),
        VariableSpec("scale_backoffs", "int64", (), 0),
        VariableSpec("event_count", "int64", (), 0),
        VariableSpec("event_integers", "int64", (RING_ROWS, RING_COLUMNS), 0),
        VariableSpec("event_scales", "float32", (RING_ROWS, 2), 0.0),
    )


def variable_spec_for(variable_count: int) -> VariableSpec:
    """The one variable whose shape is known only when the optimizer is built."""
    return VariableSpec("overflows_by_variable", "int64", (variable_count,), 0)


class StepState:
    """The variables of `specs`, by name, whatever kind of variable the host made.

    Args:
        create: makes one variable from its `VariableSpec` in the host.
        initial: the manager's first state.
    """

    loss_scale: Any
    good_steps: Any
    bad_steps: Any
    attempted_steps: Any
    skipped_steps: Any
    last_step_finite: Any
    scale_growths: Any
    scale_backoffs: Any
    event_count: Any
    event_integers: Any
    event_scales: Any

    def __init__(self, create: Callable[[VariableSpec], Any], initial: ScaleState) -> None:
        self._create = create
        self.names = [spec.name for spec in specs(initial)]
        for spec in specs(initial):
            setattr(self, spec.name, create(spec))
        self.overflows_by_variable: Any = None

    def build(self, variable_count: int) -> None:
        """Creates what depends on the number of trained variables.

        Args:
            variable_count: how many variables the optimizer trains.
        """
        self.overflows_by_variable = self._create(variable_spec_for(variable_count))
        self.names.append("overflows_by_variable")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self.names)

    def scale_state(self) -> ScaleState:
        """Reads the manager's part as tensors."""
        return ScaleState(
            tf.convert_to_tensor(self.loss_scale),
            tf.convert_to_tensor(self.good_steps),
            tf.convert_to_tensor(self.bad_steps),
        )

    def assign_scale_state(self, new: ScaleState) -> None:
        """Writes the manager's part.

        Args:
            new: scalars; cast to the variables' dtypes.
        """
        for name, value in zip(ScaleState._fields, new, strict=True):
            variable = getattr(self, name)
            variable.assign(tf.cast(value, variable.dtype))


def native(variable: Any) -> Any:
    """Returns the TensorFlow variable behind a Keras 3 variable, others as they are."""
    # The `value` of a TensorFlow variable is a method.
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def readable(variable: Any) -> Any:
    """Returns the variable, or its value if it is one of several replicas and cannot be a number.

    The variables of Keras 3 hosts can, see `StateVariable`; those of TensorFlow cannot.
    """
    mirrored = isinstance(variable, tf.distribute.DistributedValues)
    return tf.convert_to_tensor(variable) if mirrored else variable
