# SPDX-License-Identifier: Apache-2.0
"""Long trainings and many of them: nothing grows. The full lengths are those of the scripts."""

import growth
import long_run
import pytest


@pytest.mark.timeout(120)
def test_seven_thousand_steps(tmp_path):
    epochs = 7
    long_run.check(long_run.train(epochs, tmp_path), epochs)


@pytest.mark.timeout(120)
def test_training_anew_leaves_nothing_of_the_one_before(tmp_path):
    first, second = (growth.rounds(1, tmp_path) for _ in range(2))
    assert (first.alive, second.alive) == (0, 0)
    assert second.graphs <= first.graphs
    assert second.variables <= first.variables


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.timeout(60)
def test_a_model_in_which_nothing_is_trained():
    assert "gives a loss of 1 and takes no step" in growth.no_variables()
