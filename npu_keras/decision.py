# SPDX-License-Identifier: Apache-2.0
"""One decision for all: was the step free of overflow, and if not, who had it?

Every rank or replica packs what it found into one small integer vector; an all-reduce (sum) of
that vector gives all of them the same answer, with the rank and the variables of the overflow.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from npu_keras.journal import Blame
from npu_keras.overflow import Finding

ROW = 5


class Peers(Protocol):
    """The ranks or replicas that decide together."""

    size: int

    def rank_tensor(self) -> tf.Tensor:
        """Returns the own rank, int64 scalar in 0..size-1."""

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns the elementwise sum over all peers."""


class Decision(NamedTuple):
    """The common answer.

    Attributes:
        finite: bool scalar, True when the step is to be applied.
        blame: who and what overflowed.
        bad_variables: int64 vector, 1 for each trained variable whose gradient overflowed.
    """

    finite: tf.Tensor
    blame: Blame
    bad_variables: tf.Tensor


def decide(
    finding: Finding,
    positions: Sequence[int],
    variable_count: int,
    forward_finite: tf.Tensor,
    peers: Peers,
) -> Decision:
    """Decides together with all peers.

    Args:
        finding: what this rank found in its gradients.
        positions: which variable each gradient belongs to.
        variable_count: number of trained variables.
        forward_finite: bool scalar, whether this rank's loss was finite.
        peers: the other ranks or replicas.
    """
    row, bad = _own_row(finding, positions, variable_count, forward_finite)
    own = tf.one_hot(peers.rank_tensor(), peers.size, dtype=tf.int64)
    packed = tf.concat([tf.reshape(own[:, None] * row[None], [-1]), bad], axis=0)
    common = peers.total(packed)
    rows = tf.reshape(common[: peers.size * ROW], [peers.size, ROW])
    return _read_rows(rows, tf.minimum(common[peers.size * ROW :], 1), peers.size)


def joined(decision: Decision, finding: Finding, positions: Sequence[int]) -> Decision:
    """Takes into account what was found in the aggregate itself.

    Args:
        decision: what the peers found in their own gradients.
        finding: what is in the aggregate, the same on all peers.
        positions: which variable each gradient of the aggregate belongs to.
    """
    count = decision.bad_variables.shape[0]
    alone = decide(finding, positions, count, tf.constant(True), _Nobody())
    return Decision(
        tf.logical_and(decision.finite, alone.finite),
        *tf.nest.map_structure(
            lambda first, second: tf.where(decision.finite, second, first),
            decision[1:],
            alone[1:],
        ),
    )


class _Nobody:
    size = 1

    def rank_tensor(self) -> tf.Tensor:
        return tf.zeros((), tf.int64)

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        return vector


def _own_row(
    finding: Finding, positions: Sequence[int], variable_count: int, forward_finite: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    bad = tf.cast(finding.infs + finding.nans > 0, tf.int64)
    index = tf.constant(list(positions), tf.int64)[:, None]
    by_variable = tf.scatter_nd(index, bad, tf.constant([variable_count], tf.int64))
    by_variable = tf.minimum(by_variable, 1)  # a variable may have been given twice
    first = tf.where(tf.reduce_any(bad > 0), 1 + tf.argmax(by_variable), 0)
    overflowed = tf.cast(finding.overflowed, tf.int64)
    forward = overflowed * tf.cast(tf.logical_not(forward_finite), tf.int64)
    infs, nans = tf.reduce_sum(finding.infs), tf.reduce_sum(finding.nans)
    return tf.stack([overflowed, first, infs, nans, forward]), by_variable


def _read_rows(rows: tf.Tensor, bad: tf.Tensor, size: int) -> Decision:
    overflowed = rows[:, 0]
    finite = tf.reduce_all(tf.equal(overflowed, 0))
    nobody = tf.constant(-1, tf.int64)
    rank = tf.where(finite, nobody, tf.argmax(overflowed)) if size > 1 else nobody
    first = tf.gather(rows[:, 1], tf.argmax(overflowed)) - 1
    infs, nans, forward = tf.unstack(tf.reduce_sum(rows[:, 2:], axis=0))
    blame = Blame(tf.reduce_sum(bad), first, infs, nans, tf.minimum(forward, 1), rank)
    return Decision(finite, blame, bad)
