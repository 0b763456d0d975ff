# SPDX-License-Identifier: Apache-2.0
"""Keras 3 optimizers that are made of others, such as `keras.optimizers.MultiOptimizer`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from npu_keras._upstream import leave_aggregation_to_us
from npu_keras.sparse import Gradient


def all_of(optimizer: Any) -> list[Any]:
    """Returns the optimizer and every Keras optimizer that it holds, at any depth, each once.

    Args:
        optimizer: a Keras 3 optimizer. One that chooses others by variable holds them once it is
            built.
    """
    found = [optimizer]
    for each in found:
        found += [held for held in _held(each) if not any(held is known for known in found)]
    return found


def is_composite(optimizer: Any) -> bool:
    """Whether the optimizer leaves updates to others."""
    return len(all_of(optimizer)) > 1 or _divides_variables(optimizer)


def leave_aggregation(optimizer: Any) -> None:
    """Stops the optimizer, and all that it holds, from summing gradients over replicas.

    Args:
        optimizer: a Keras 3 optimizer; again once it is built.
    """
    for each in all_of(optimizer):
        leave_aggregation_to_us(each)


def with_all_variables(
    optimizer: Any, gradients: Sequence[Gradient], variables: Sequence[Any], every: Sequence[Any]
) -> tuple[list[Gradient | None], list[Any]]:
    """Returns what the optimizer's `apply` takes: gradients and their variables.

    `MultiOptimizer` wants an entry for each variable it was built with, in which None stands for no
    gradient (Keras 3.15.1).

    Args:
        optimizer: a Keras 3 optimizer.
        gradients: those there are.
        variables: their variables.
        every: all variables that the optimizer was built with.
    """
    if not _divides_variables(optimizer):
        return list(gradients), list(variables)
    by_variable = {id(v): g for g, v in zip(gradients, variables, strict=True)}
    return [by_variable.get(id(v)) for v in every], list(every)


def _divides_variables(optimizer: Any) -> bool:
    multi = getattr(keras.optimizers, "MultiOptimizer", None)  # new in Keras 3.15
    return multi is not None and isinstance(optimizer, multi)


def _held(optimizer: Any) -> Iterator[Any]:
    for value in vars(optimizer).values():
        if isinstance(value, Mapping):
            values = list(value.values())
        else:
            values = list(value) if isinstance(value, list | tuple) else [value]
        for each in values:
            if isinstance(each, keras.optimizers.Optimizer):
                yield each
