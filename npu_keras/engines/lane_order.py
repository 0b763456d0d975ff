# SPDX-License-Identifier: Apache-2.0
"""Order among the ops of one graph, where the graph itself has none."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from npu_keras._upstream import is_usable_here

_chain = contextvars.ContextVar("npu_keras_chain", default="")


@contextlib.contextmanager
def separate(chain: str) -> Iterator[None]:
    """Keeps the ops made inside out of the order of others.

    In a graph of `tf.compat.v1` a session runs what is fetched, and all that comes before it.

    Args:
        chain: a name; ops made under one name keep their order.
    """
    token = _chain.set(chain)
    try:
        yield
    finally:
        _chain.reset(token)


def previous(key: str) -> list[Any]:
    """The op that was last remembered under `key` in the graph being traced, if any."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    remembered = [op for op in graph.get_collection(_name(key)) if op.graph is graph]
    return [op for op in remembered if is_usable_here(op)]


def remember(key: str, op: Any) -> None:
    """Makes `op` the one that `previous(key)` returns."""
    # The graph of a branch shares its collections with the graph around it.
    collection = op.graph.get_collection_ref(_name(key))
    collection[:] = [each for each in collection if each.graph is not op.graph] + [op]


def _name(key: str) -> str:
    return f"npu_keras/{_chain.get()}{key}"
