# SPDX-License-Identifier: Apache-2.0
"""Long trainings and many of them: nothing grows. The full lengths are those of the scripts."""

import growth
import long_run
import pytest


@pytest.mark.timeout(300)
def test_seven_thousand_steps(tmp_path):
    epochs = 7
    long_run.check(long_run.train(epochs, tmp_path), epochs)


@pytest.mark.timeout(300)
def test_a_training_leaves_no_graph_variable_or_optimizer(tmp_path):
    before, after = growth.rounds(0, tmp_path), growth.rounds(1, tmp_path)
    assert after.alive == 0
    assert after.graphs <= before.graphs
    assert after.variables <= before.variables


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.timeout(300)
def test_a_model_in_which_nothing_is_trained():
    assert "gives a loss of 1 and takes no step" in growth.no_variables()
