# SPDX-License-Identifier: Apache-2.0
"""Every order of loss scaling and aggregation: the same weights, or a TypeError."""

import numpy as np
import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


def abilities(name):
    """How often a nesting asks for loss scaling and for aggregation; None for Keras' scaler."""
    innermost, *wrappers = name.split(" < ")
    if "Keras" in wrappers:
        return None
    scales = ("Scaled" in innermost) + sum("scale" in w or w == "npu both" for w in wrappers)
    aggregates = ("Aggregated" in innermost) + sum(
        "aggregate" in w or w == "npu both" for w in wrappers
    )
    return scales, aggregates


@in_runs_of("nesting")
def test_same_weights_or_a_type_error(ranks):
    reports = ranks("nestings")
    weights = {}
    for name, outcome in reports[0].items():
        wanted = abilities(name)
        if outcome == "Keras":
            assert name.split(" < ")[0].startswith("SGD")
            assert set(name.split(" < ")[1:]) <= {"Keras"}
        elif wanted is None or max(wanted) > 1:
            assert outcome == "TypeError", name
        else:
            assert (outcome["scales"], outcome["aggregates"]) == tuple(map(bool, wanted)), name
            together = "together" in name if wanted == (1, 0) else None
            weights.setdefault((*wanted, together), set()).add(outcome["weights"])
    assert set(weights) == {(0, 0, None), (0, 1, None), (1, 0, False), (1, 0, True), (1, 1, None)}
    assert [len(each) for each in weights.values()] == [1] * 5


@in_runs_of("nesting")
def test_ranks_agree_wherever_anything_is_common(ranks):
    first, second = ranks("nestings")
    assert list(first) == list(second)
    for name, outcome in first.items():
        if isinstance(outcome, dict) and outcome["aggregates"]:
            assert outcome == second[name], name
            assert outcome["iterations"] == (1 if outcome["scales"] else 2), name
        elif "together" in name and isinstance(outcome, dict):
            assert (outcome["iterations"], outcome["scale"]) == (1, 8.0), name
            assert (second[name]["iterations"], second[name]["scale"]) == (1, 8.0), name


@in_runs_of("composites")
def test_an_optimizer_made_of_others_updates_once(ranks):
    report = ranks.same("made_of_others")
    assert report
    for name, steps in report.items():
        first, second, third = np.array(steps)
        np.testing.assert_allclose(first, [1 - 0.1 * 1.5, 1 - 0.01 * 4.0, 0], 1e-6, err_msg=name)
        np.testing.assert_array_equal(second, [*first[:2], 1], err_msg=name)
        np.testing.assert_allclose(third, first + [-0.1, -0.01, 1], 1e-6, err_msg=name)


@in_runs_of("composites")
def test_an_optimizer_made_of_others_is_not_sharded(ranks):
    for name, error in ranks.same("made_of_others_and_sharded").items():
        assert error.startswith(f"ValueError: {name} divides the variables"), error
