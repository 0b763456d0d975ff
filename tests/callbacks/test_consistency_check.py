# SPDX-License-Identifier: Apache-2.0
"""With real ranks it is tested in tests/distributed/test_metric_average.py."""

import keras
import numpy as np
import pytest
from hosts import HOSTS, model

from npu_keras import distribute
from npu_keras.callbacks import ConsistencyCheck, consistency_check
from npu_keras.callbacks.consistency_check import require_same_values
from npu_keras.callbacks.host_model import common_variables


class Ranks:
    """What ranks tell each other, as far as one of them can see."""

    def __init__(self, *others):
        self.others = list(others)
        self.rounds = 0

    def exchange(self, value, label):
        self.rounds += 1
        return [value, *self.others.pop(0)]


def hashes_of(*variables):
    """What a rank with these values sends: first one hash for all, then one for each."""
    heard = []

    class Listen:
        def exchange(self, value, label):
            heard.append(value)
            return [value, value] if label == "hashes of each weight" else [value, ""]

    require_same_values(Listen(), list(variables))
    return heard


def weights(*values):
    return [keras.Variable(value, name=f"w{i}") for i, value in enumerate(values)]


def test_equal_weights_cost_one_round():
    whole, _ = hashes_of(*weights(1.0, 2.0))
    ranks = Ranks([whole])
    require_same_values(ranks, weights(1.0, 2.0))
    assert ranks.rounds == 1


def test_the_first_variable_that_differs_and_the_ranks_are_named():
    others = [hashes_of(*weights(1.0, other, 3.0)) for other in (2.0, 2.5, 2.5)]
    ranks = Ranks(*zip(*others, strict=True))
    with pytest.raises(RuntimeError, match=r"first .* differs is 'w1': ranks 2, 3 have another"):
        require_same_values(ranks, weights(1.0, 2.0, 4.0)[:2] + weights(3.0))
    ranks = Ranks(*zip(*others[:2], strict=True))
    with pytest.raises(RuntimeError, match="is 'w1': rank 2 has another value than rank 0"):
        require_same_values(ranks, weights(1.0, 2.0, 3.0))


def test_bits_are_compared_not_values():
    whole, each = hashes_of(*weights(np.float32(0.0)))
    with pytest.raises(RuntimeError, match="'w0': rank 1 has"):
        require_same_values(Ranks([whole], [each]), weights(np.float32(-0.0)))


@pytest.mark.parametrize("host", HOSTS)
def test_what_ranks_have_of_their_own_is_left_out(host):
    made = model(host)
    names = [getattr(v, "path", v.name).split(":")[0] for v in common_variables(made)]
    weights = [n for n in names if n.split("/")[-1] in ("gamma", "beta", "kernel", "bias")]
    assert (
        len([n for n in weights if not n.startswith("m/")]) == 4
    )  # slots of momentum are compared
    assert not [n for n in names if "moving" in n]
    assert any("loss_scale" in n for n in names)
    assert any("event_integers" in n for n in names)


def test_sums_of_gradients_are_left_out():
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    names = [v.path.split("/")[-1] for v in common_variables(made)]
    assert sorted(names) == ["bias", "iteration", "kernel", "learning_rate"]


@pytest.mark.parametrize(
    "every, steps_per_execution, expected",
    [
        ("epoch", 1, [5, 10]),
        (2, 1, [2, 4, 6, 8, 10]),
        (3, 1, [3, 6, 9]),
        (4, 3, [5, 10]),
        (1, 3, [3, 5, 8, 10]),
    ],
)
def test_when_it_looks(monkeypatch, every, steps_per_execution, expected):
    seen = []
    monkeypatch.setattr(distribute, "size", lambda: 2)
    check = ConsistencyCheck(every)
    monkeypatch.setattr(
        consistency_check, "require_same_values", lambda engine, variables: seen.append(taken[0])
    )
    monkeypatch.setattr(consistency_check, "common_variables", lambda model: [])
    taken = [0]
    check.on_train_begin()
    for epoch in range(2):
        check.on_epoch_begin(epoch)
        for start in range(0, 5, steps_per_execution):
            last = min(start + steps_per_execution, 5) - 1
            taken[0] += last + 1 - start
            check.on_train_batch_end(last)
        check.on_epoch_end(epoch)
    assert seen == expected


def test_one_rank_alone_compares_nothing(monkeypatch):
    monkeypatch.delattr(consistency_check, "require_same_values")
    check = ConsistencyCheck(every=1)
    check.set_model(None)
    check.on_train_begin()
    check.on_epoch_begin(0)
    check.on_train_batch_end(0)  # would fail, had it anything to compare
