# SPDX-License-Identifier: Apache-2.0
"""What ranks agree on before their first step: the same variables, settings, weights and lanes."""

import hashlib
import itertools
import json
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from npu_keras.engines import Engine
from npu_keras.journal import read

EAGER_LANE = 0
"""The lane of calls outside of any graph, which are made one after the other."""

_next_lane: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def take_lanes(engine: Engine, count: int) -> int:
    """Reserves lane numbers, and returns the first; in the same order on every rank."""
    first = _next_lane.get(engine, EAGER_LANE + 1)
    _next_lane[engine] = first + count
    return first


def require_same_everywhere(
    engine: Engine, trained: Sequence[Any], settings: dict[str, Any]
) -> None:
    """Compares variables and settings, and makes the next lane the same on all ranks.

    Args:
        engine: how the ranks talk.
        trained: the trained variables, in order.
        settings: by name, JSON-safe; the same names on every rank.

    Raises:
        RuntimeError: on every rank, naming the first difference between two ranks.
    """
    shapes = [
        [i, tf.TensorShape(v.shape).as_list(), tf.as_dtype(v.dtype).name]
        for i, v in enumerate(trained)
    ]
    own = [_digest(shapes), settings, take_lanes(engine, 0)]
    everyone = engine.exchange(own, "variables and settings")
    _next_lane[engine] = max(lane for *_, lane in everyone)
    for rank, (_, other, _) in enumerate(everyone):
        if other != everyone[0][1]:
            _name_other_settings(everyone[0][1], rank, other)
    if any(digest != everyone[0][0] for digest, *_ in everyone):
        _name_first_difference(engine, shapes, [variable_name(v) for v in trained])


def require_equal_weights(engine: Engine, trained: Sequence[Any]) -> None:
    """Raises on every rank if the weights differ.

    In an eager loop the first gradients exist already, made from the weights before the broadcast:
    they would be mixed silently.

    Args:
        engine: how the ranks talk.
        trained: the trained variables, in order.

    Raises:
        RuntimeError: if they differ.
    """
    own = [hashlib.sha256(np.ascontiguousarray(read(v)).tobytes()).hexdigest() for v in trained]
    everyone = engine.exchange(_digest(own), "hashes of weights")
    if any(other != everyone[0] for other in everyone):
        raise RuntimeError(
            "The ranks computed their first gradients from different weights. In an eager loop "
            "call `npu_keras.distribute.broadcast(model.variables)` before the first step, or "
            "put the step in a `tf.function`."
        )


def variable_name(variable: Any) -> str:
    """Returns the path of a Keras variable, the name of any other."""
    return getattr(variable, "path", variable.name)


def _name_other_settings(first: dict[str, Any], rank: int, other: dict[str, Any]) -> None:
    names = [name for name in first if first[name] != other.get(name)] or list(other)
    ours, theirs = ({name: each.get(name) for name in names} for each in (first, other))
    raise RuntimeError(
        f"All ranks must have the same settings. Rank 0 has {ours}, rank {rank} has {theirs}."
    )


def _name_first_difference(engine: Engine, shapes: list[Any], names: list[str]) -> None:
    described = [[name, *shape] for name, shape in zip(names, shapes, strict=True)]
    everyone = engine.exchange(described, "descriptions of variables")
    for rank, other in enumerate(everyone):
        pairs = itertools.zip_longest(everyone[0], other)
        for index, (first, second) in enumerate(pairs):
            if first is None or second is None or first[1:] != second[1:]:
                raise RuntimeError(
                    "All ranks must train the same variables. The first difference is variable "
                    f"{index}: rank 0 has {_describe(first)}, rank {rank} has {_describe(second)}."
                )


def _describe(entry: list[Any] | None) -> str:
    if entry is None:
        return "none"
    name, _, shape, dtype = entry
    return f"{name!r} with shape {tuple(shape)} and dtype {dtype}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
