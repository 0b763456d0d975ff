# SPDX-License-Identifier: Apache-2.0
"""Weight-update sharding: who owns what, and that nothing else changes."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


@in_runs_of("shares")
@pytest.mark.parametrize("name", ["Adam", "SGD, global_clipnorm", "AdamW, EMA"])
def test_same_bits_with_and_without(ranks, name):
    whole, sharded = ranks.same("sharded_and_not")[name]
    assert sharded == whole
    assert sharded[1:] == [4, 1, 8.0]


@in_runs_of("shares_saved")
def test_slots_exist_where_they_are_owned(ranks):
    first, second = ranks("slots_where_owned")
    assert first == [12, 12]
    assert second == [5, 5, 4, 4, 7, 7]


@in_runs_of("shares")
def test_an_overflow_changes_no_collective(ranks):
    bad, good, bad_again = ranks.same("same_collectives_in_every_step")
    assert good == bad == bad_again
    owners = [entry for entry in good if entry[0] == "broadcast"]
    assert len(owners) == ranks.size
    assert sorted(n for *_, counts in owners for n in counts) == [4, 5, 7, 12]


@in_runs_of("shares")
def test_fit(ranks):
    _, finite, skipped = ranks.same("sharded_in_fit")
    assert finite
    assert skipped == 1


@in_runs_of("shares_saved")
@pytest.mark.parametrize("direction", ["None None", "None local", "local None"])
def test_checkpoint_of_another_number_of_ranks(ranks, direction):
    (saved, loaded), states = ranks.same("sharded_checkpoint")[direction]
    assert saved == loaded
    assert states == [[4, 4.0], [4, 4.0]]


@in_runs_of("shares_saved")
def test_model_file(ranks):
    saved, loaded = ranks.same("sharded_model_file")
    assert saved == loaded


@in_runs_of("shares_saved")
def test_more_ranks_than_variables(ranks):
    message = ranks.same("more_ranks_than_variables")
    assert message.startswith("ValueError: Weight-update sharding needs at least one variable")
    assert "n_ranks=2" in message


@in_runs_of("shares")
def test_rows_of_an_owned_table(ranks):
    whole, sharded = ranks.same("shares_with_rows")
    assert whole == sharded
