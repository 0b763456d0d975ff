# SPDX-License-Identifier: Apache-2.0
"""Ranks that differ where they must not say so, all of them, before anything is sent."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


@in_runs_of("agreement")
def test_different_seeds_start_from_rank_0(ranks):
    report = ranks.same("different_seeds")
    assert report["scale"] == 8.0
    assert report["difference"] <= 1e-7


@in_runs_of("agreement")
def test_eager_loop_from_different_weights(ranks):
    reports = ranks("started_apart_eagerly")
    assert [report["untouched"] for report in reports] == [1.0, 2.0]
    for report in reports:
        assert report["error"].startswith("RuntimeError: The ranks computed their first gradients")
        assert "npu_keras.distribute.broadcast" in report["error"]
        assert report["after"] == pytest.approx(0.9)


@in_runs_of("agreement")
def test_ranks_stay_apart_on_request(ranks):
    assert ranks("left_apart_on_request") == pytest.approx([0.9, 1.9])


FIRST_DIFFERENCES = {
    "different_shapes": ("variable 2", "(4, 5)", "(4, 6)"),
    "different_order": ("variable 0", "'a' with shape (2,)", "'b' with shape (2, 2)"),
    "different_count": ("variable 2", "rank 0 has none", "'v2'"),
    "different_dtype": ("variable 0", "float32", "float16"),
}


@in_runs_of("agreement")
@pytest.mark.parametrize("name", FIRST_DIFFERENCES)
def test_first_differing_variable_is_named(ranks, name):
    message = ranks.same(name)
    assert message.startswith("RuntimeError: All ranks must train the same variables.")
    for words in FIRST_DIFFERENCES[name]:
        assert words in message


@in_runs_of("agreement")
def test_different_settings(ranks):
    message = ranks.same("different_settings")
    assert message == (
        "RuntimeError: All ranks must have the same settings. Rank 0 has {'compression': None}, "
        "rank 1 has {'compression': 'bf16'}."
    )


@in_runs_of("agreement")
def test_different_managers(ranks):
    *other_steps, other_kind, other_kind_too = ranks.same("different_managers")
    for message in other_steps:
        assert message.startswith("RuntimeError: All ranks must have the same settings.")
        assert message.count("incr_every_n_steps") == 2
        assert "'1000'" in message
        assert "'7'" in message
    assert len(other_steps) == 2
    for message in (other_kind, other_kind_too):
        assert "'loss_scale_manager': 'FixedLossScaleManager'" in message


@in_runs_of("agreement")
def test_names_may_differ(ranks):
    ranks.same("same_shapes_other_names")


@in_runs_of("agreement")
def test_xla_is_refused(ranks):
    report = ranks.same("compiled_by_xla")
    for message in (report["fit"], report["function"]):
        assert f"'{ranks.engine}' engine" in message
        assert "jit_compile=False" in message
    assert report["fit"].startswith("RuntimeError")
    assert report["weight"] == 1.0


@in_runs_of("agreement")
def test_gradient_on_one_rank_only(ranks):
    v, w, unused, table = ranks.same("none_on_one_rank")
    assert (v, w, unused) == pytest.approx((0.9, 0.95, 1.0))
    assert table[:3] == [[1.0, 1.0]] * 3
    assert table[3] == pytest.approx([0.95, 0.95])


@in_runs_of("agreement")
def test_gradient_that_comes_later(ranks):
    message = ranks.same("new_gradient_later")
    assert message.startswith("RuntimeError: Every rank must send the same gradients")
    assert "'w'" in message
