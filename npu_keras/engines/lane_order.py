# SPDX-License-Identifier: Apache-2.0
"""Order among the ops of one graph, where the graph itself has none."""

from typing import Any

import tensorflow as tf


def previous(key: str) -> list[Any]:
    """The op that was last remembered under `key` in the graph being traced, if any."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    return [op for op in graph.get_collection(_name(key)) if op.graph is graph]


def remember(key: str, op: Any) -> None:
    """Makes `op` the one that `previous(key)` returns."""
    # The graph of a branch shares its collections with the graph around it.
    collection = op.graph.get_collection_ref(_name(key))
    collection[:] = [each for each in collection if each.graph is not op.graph] + [op]


def _name(key: str) -> str:
    return f"npu_keras/{key}"
