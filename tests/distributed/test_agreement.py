# SPDX-License-Identifier: Apache-2.0
"""Ranks that differ where they must not say so, all of them, before anything is sent."""

import pytest
from reports import two_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]


@two_ranks
def test_different_seeds_start_from_rank_0(ranks):
    report = ranks.same("different_seeds")
    assert report["scale"] == 8.0
    assert report["difference"] <= 1e-7


@two_ranks
def test_eager_loop_from_different_weights(ranks):
    reports = ranks("started_apart_eagerly")
    assert [report["untouched"] for report in reports] == [1.0, 2.0]
    for report in reports:
        assert report["error"].startswith("RuntimeError: The ranks computed their first gradients")
        assert "npu_keras.distribute.broadcast" in report["error"]
        assert report["after"] == pytest.approx(0.9)


@two_ranks
def test_ranks_stay_apart_on_request(ranks):
    assert ranks("left_apart_on_request") == pytest.approx([0.9, 1.9])


FIRST_DIFFERENCES = {
    "different_shapes": ("variable 2", "(4, 5)", "(4, 6)"),
    "different_order": ("variable 0", "'a' with shape (2,)", "'b' with shape (2, 2)"),
    "different_count": ("variable 2", "rank 0 has none", "'v2'"),
    "different_dtype": ("variable 0", "float32", "float16"),
}


@two_ranks
@pytest.mark.parametrize("name", FIRST_DIFFERENCES)
def test_first_differing_variable_is_named(ranks, name):
    message = ranks.same(name)
    assert message.startswith("RuntimeError: All ranks must train the same variables.")
    for words in FIRST_DIFFERENCES[name]:
        assert words in message


@two_ranks
def test_different_settings(ranks):
    message = ranks.same("different_settings")
    assert message.startswith("RuntimeError: All ranks must aggregate with the same settings.")
    assert "'compression': None" in message
    assert "rank 1 has" in message
    assert "'compression': 'bf16'" in message


@two_ranks
def test_names_may_differ(ranks):
    ranks.same("same_shapes_other_names")


@two_ranks
def test_xla_is_refused(ranks):
    report = ranks.same("compiled_by_xla")
    for message in (report["fit"], report["function"]):
        assert f"'{ranks.engine}' engine" in message
        assert "jit_compile=False" in message
    assert report["fit"].startswith("RuntimeError")
    assert report["weight"] == 1.0


@two_ranks
def test_gradient_on_one_rank_only(ranks):
    v, w, unused, table = ranks.same("none_on_one_rank")
    assert (v, w, unused) == pytest.approx((0.9, 0.95, 1.0))
    assert table[:3] == [[1.0, 1.0]] * 3
    assert table[3] == pytest.approx([0.95, 0.95])


@two_ranks
def test_gradient_that_comes_later(ranks):
    message = ranks.same("new_gradient_later")
    assert message.startswith("RuntimeError: Every rank must send the same gradients")
    assert "'w'" in message
