# SPDX-License-Identifier: Apache-2.0
"""Private names of TensorFlow that say how a traced update is compiled and run; see `_upstream`."""

import functools
from typing import Any

from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import kernels


def call_branches(result: Any) -> None:
    """Makes the conditional that gave a result call its branches (TensorFlow 2.21.0).

    Otherwise TensorFlow makes them part of the graph around, with a switch for each input.

    Args:
        result: of `tf.cond` in a `tf.function`.
    """
    op = result.op
    while op.type == "Identity":
        op = op.inputs[0].op
    # Without side effects in its branches there may be none left, and nothing to be done.
    if op.type in ("If", "StatelessIf"):
        op._set_attr("_lower_using_switch_merge", attr_value_pb2.AttrValue(b=False))


def unknown_to_xla(graph: Any, device_type: str) -> list[str]:
    """Types of operations in a traced graph that XLA has no kernel for (TensorFlow 2.21.0).

    Args:
        graph: of a concrete function.
        device_type: `"CPU"` or `"GPU"`.
    """
    definition = graph.as_graph_def()
    functions = definition.library.function
    nodes = [*definition.node, *(node for f in functions for node in f.node_def)]
    used = {node.op for node in nodes} - {"Placeholder"}  # what it takes
    return sorted(name for name in used if not _has_kernel(name, device_type))


@functools.cache
def _has_kernel(name: str, device_type: str) -> bool:
    registered = kernels.get_registered_kernels_for_op(name).kernel
    return any(kernel.device_type == f"XLA_{device_type}_JIT" for kernel in registered)
