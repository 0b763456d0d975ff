# SPDX-License-Identifier: Apache-2.0
"""The optimizer inside: what it may be, and how it is called."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from npu_keras._upstream import keeps_order
from npu_keras.nesting import V1, wrong_optimizer


def require_optimizer(opt: Any) -> None:
    """Raises TypeError for what is no optimizer of `tf.compat.v1.train`."""
    methods = all(callable(getattr(opt, m, None)) for m in ("compute_gradients", "apply_gradients"))
    foreign = not isinstance(opt, tf.compat.v1.train.Optimizer) and _is_keras(opt)
    if isinstance(opt, type) or foreign or not methods:
        raise wrong_optimizer(opt, V1, "tf.compat.v1.train.AdamOptimizer(1e-3)")


def require_step_counter(global_step: Any) -> None:
    """Raises TypeError for a `global_step` that nothing can be added to."""
    if global_step is not None and not hasattr(global_step, "assign_add"):
        raise TypeError(
            "`global_step` must be a variable, such as "
            "`tf.compat.v1.train.get_or_create_global_step()`, or None. "
            f"Received: global_step={global_step!r}"
        )


def _is_keras(opt: Any) -> bool:
    modules = {base.__module__.split(".")[0] for base in type(opt).__mro__}
    return bool(modules & {"keras", "tf_keras"})


def in_present_scope(apply: Any, pairs: list[Any], global_step: Any) -> Callable[[], Any]:
    """Lets variables made in a branch of ours have the names they would have without it."""
    if keeps_order():
        return lambda: apply(pairs, global_step=global_step)
    scope = tf.compat.v1.get_default_graph().get_name_scope()

    def applied() -> Any:
        with tf.compat.v1.get_default_graph().name_scope(f"{scope}/" if scope else None):
            return apply(pairs, global_step=global_step)

    return applied


def as_train_op(op: tf.Operation) -> tf.Operation:
    """Puts the whole step into the collection of train ops, in place of an update in a branch.

    An op of a branch is not in the graph, which could not be imported again.
    """
    if keeps_order():
        return op
    train_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    train_ops[:] = [other for other in train_ops if other.graph is op.graph]
    if op not in train_ops:
        train_ops.append(op)
    return op
