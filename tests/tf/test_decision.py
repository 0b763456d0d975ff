# SPDX-License-Identifier: Apache-2.0
"""One overflow is a veto, however many ranks there are; no majority is asked."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from npu_keras.decision import decide
from npu_keras.overflow import Finding

pytestmark = pytest.mark.tf

VARIABLES = 8


class Peer:
    """A rank among several in one process: the others' vectors are added to its own."""

    def __init__(self, rank, size, others=0):
        self.rank, self.size, self.others = rank, size, others
        self.sent = None

    def rank_tensor(self):
        return tf.constant(self.rank, tf.int64)

    def total(self, vector):
        self.sent = vector.numpy()
        return vector + self.others


def finding(bad):
    """What a rank finds: nothing, or an infinity in each of these variables."""
    infs = np.zeros(VARIABLES, np.int64)
    infs[list(bad)] = 1
    return Finding(tf.constant(bool(bad)), tf.constant(infs), tf.zeros(VARIABLES, tf.int64))


def vote(bad_of_ranks):
    """The decision of every rank."""

    def of(peer, bad):
        positions = range(VARIABLES)
        return decide(finding(bad), positions, VARIABLES, tf.constant(True), peer)

    size = len(bad_of_ranks)
    sent = []
    for rank, bad in enumerate(bad_of_ranks):
        peer = Peer(rank, size)
        of(peer, bad)
        sent.append(peer.sent)
    totals = [sum(other for r, other in enumerate(sent) if r != rank) for rank in range(size)]
    return [of(Peer(r, size, totals[r]), bad) for r, bad in enumerate(bad_of_ranks)]


@pytest.mark.parametrize(
    "who", [each for n in range(4) for each in itertools.combinations("012", n)]
)
def test_three_ranks_apply_only_if_all_are_finite(who):
    decisions = vote([(2, 5) if str(rank) in who else () for rank in range(3)])
    assert [bool(decision.finite) for decision in decisions] == [not who] * 3
    for decision in decisions:
        blame = decision.blame
        assert int(blame.rank) == (int(who[0]) if who else -1)
        assert int(blame.first_bad) == (2 if who else -1)
        assert int(blame.infs) == 2 * len(who)
        expected = [1 if who and i in (2, 5) else 0 for i in range(VARIABLES)]
        assert decision.bad_variables.numpy().tolist() == expected


def test_a_variable_that_is_bad_on_several_ranks_counts_once():
    for decision in vote([(0,), (0, 7), ()]):
        assert decision.bad_variables.numpy().tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
        assert int(decision.blame.bad_variables) == 2
