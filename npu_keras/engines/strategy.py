# SPDX-License-Identifier: Apache-2.0
"""Replicas of a `tf.distribute` strategy, found inside a replica context.

Keras divides the loss by the number of replicas, so gradients are summed. A conditional that holds
an update must stand in the cross-replica context: `merge_call` leads there, and
`call_for_each_replica` back into the replicas for the update itself.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras._upstream import in_xla, supports_no_merge_call


def replicas_in_sync() -> int:
    """Returns how many replicas take a step together here; 1 without a strategy."""
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            "An optimizer updates variables in a replica context: call it inside "
            "`strategy.run(train_step, ...)`, not in the strategy's scope alone."
        )
    return tf.distribute.get_strategy().num_replicas_in_sync


def warn_where_fit_fails() -> None:
    """Says, where an optimizer is made, that `fit` will not work under the strategy around it.

    Keras 3.15.1 fails there before it has called any method of the optimizer.
    """
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    if sum(len(jobs.get(job, ())) for job in ("chief", "worker")) > 1:
        warnings.warn(
            "`model.fit` of Keras 3 fails under a MultiWorkerMirroredStrategy with several workers "
            "(keras-team/keras#20585). Leave out the strategy: the 'collective' engine needs only "
            "the same TF_CONFIG and `is_distributed=True` or `NPUDistributedOptimizer`. A loop of "
            "your own with `strategy.run` works.",
            stacklevel=5,
        )


class ReplicaTransport:
    """The collectives of the strategy around the present replica context."""

    @property
    def size(self) -> int:
        """How many replicas there are, over all workers."""
        return tf.distribute.get_strategy().num_replicas_in_sync

    def rank_tensor(self) -> tf.Tensor:
        """Returns the replica's number, int64 scalar."""
        context = tf.distribute.get_replica_context()
        return tf.cast(context.replica_id_in_sync_group, tf.int64)

    def sum(self, values: Sequence[Any]) -> list[Any]:
        """Returns the sums over all replicas of tensors or IndexedSlices."""
        if in_xla():
            raise RuntimeError(
                "A training step under a strategy with several replicas cannot be compiled by "
                "XLA. Pass `jit_compile=False` to `model.compile`."
            )
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, list(values))

    def across(self, write: Callable[..., None], scalars: Any, gradients: Sequence[Any]) -> None:
        """Calls `write` in the context where variables of all replicas can be written.

        Args:
            write: takes the scalars, the same on all replicas, and the gradients of each.
            scalars: a structure of tensors.
            gradients: this replica's gradients.
        """
        if supports_no_merge_call():
            write(scalars, gradients)
            return

        def cross(strategy: Any, scalars: Any, gradients: Any) -> None:
            def first(value: Any) -> tf.Tensor:
                return strategy.experimental_local_results(value)[0]

            write(tf.nest.map_structure(first, scalars), gradients)

        context = tf.distribute.get_replica_context()
        context.merge_call(cross, args=(scalars, list(gradients)))

    def in_replicas(self, function: Callable[[Any], None], gradients: Any) -> None:
        """Calls `function` in every replica with its gradients."""
        if tf.distribute.in_cross_replica_context():
            extended = tf.distribute.get_strategy().extended
            extended.call_for_each_replica(function, args=(gradients,))
        else:
            function(gradients)
