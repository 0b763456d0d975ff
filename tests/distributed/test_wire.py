# SPDX-License-Identifier: Apache-2.0
"""What is sent: rows, dtypes, buckets."""

import pytest
from reports import in_runs_of

pytestmark = [pytest.mark.distributed, pytest.mark.tf, pytest.mark.timeout(600)]

ELEMENTS = [12, 5, 1, 12000, 7, 8]


@in_runs_of("sparse_rows")
def test_rows_are_sent_once_each_and_never_dense(ranks):
    reports = ranks("gathered_rows")
    for report in reports:
        assert report["gather"] == report["dense"] == reports[0]["gather"]
        assert report["difference"] == 0.0
        rows, indices, decision = report["sent"]
        assert rows == ["all_gather", "float32", [8 * report["unique"]]]
        assert indices == ["all_gather", "int64", [report["unique"]]]
        assert decision[0] == "all_reduce"
        assert decision[2] == [5 * ranks.size + 1]
        assert report["unique"] == 20
        assert report["moved rows"] == 40


@in_runs_of("sparse_rows")
def test_no_rows(ranks):
    report = ranks.same("nobody_has_a_row")
    (table,) = report["table"]
    assert table[0] == table[2] == table[3] == [1.0, 1.0]
    assert table[1] == pytest.approx([0.9, 0.9])
    assert report["applied"] is True


@in_runs_of("sparse_rows")
def test_tied_embedding(ranks):
    report = ranks.same("tied_embedding")
    assert report["gather"] == report["dense"]


@in_runs_of("sparse_rows")
def test_dense_on_one_rank_and_rows_on_another(ranks):
    assert ranks.same("dense_here_rows_there") == [[[0.5, 0.5], [-0.5, -0.5], [0.5, 0.5]]]


@in_runs_of("sparse_rows")
def test_rows_given_twice_stay_rows(ranks):
    report = ranks.same("rows_given_twice")
    assert report["table"] == [[[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]
    assert report["kinds"] == ["all_gather", "broadcast"]


@in_runs_of("sparse_rows")
def test_rows_are_added_in_the_dtype_of_the_variable(ranks):
    assert ranks.same("rows_on_a_narrow_wire") == [[[0.0], [-128.5]]]


@in_runs_of("wire_plan")
@pytest.mark.parametrize(
    "compression, dtype, digits", [("bf16", "bfloat16", 8), ("fp16", "float16", 11)]
)
def test_compression(ranks, compression, dtype, digits):
    report = ranks.same("wire_dtypes")[compression]
    assert report["wire"] == [dtype, "int64"]
    # Two steps of 0.1 times a gradient of at most 4, each rounded when sent and when added.
    assert 0 < report["difference"] < 2 * 0.1 * 4 * 2.0**-digits * 2


@in_runs_of("wire_plan")
def test_eight_ranks_in_float16(ranks):
    report = ranks.same("eight_ranks_in_float16")
    assert report["dtype"] == "float16"
    assert report["mean"] == pytest.approx(20000, rel=2e-3)
    assert report["sum"] == float("inf")
    assert report["rows"] == [[5], [[2500.0]]]
    assert report["lost"] == 0.5, "both 1e-7 of the four numbers that are not 0"
    assert report["lost in float32"] == 0.0


@in_runs_of("wire_plan")
def test_loss_scale_keeps_small_gradients_on_a_float16_wire(ranks):
    report = ranks.same("underflow")
    assert report["1.0"] == 0.0
    assert report["32768.0"] == pytest.approx(-1e-8, rel=1e-3)


@in_runs_of("wire_plan")
def test_buckets_change_no_bit(ranks):
    report = ranks.same("bucket_sizes")
    assert len(report) == 14
    for dtypes in ("1 dtypes", "2 dtypes"):
        of_dtypes = [each for name, each in report.items() if name.startswith(dtypes)]
        assert len({each["weights"] for each in of_dtypes}) == 1
    for name, each in report.items():
        assert each["sent"] == each["planned"], name
        assert each["each once"], name
    sends = {name: len(each["sent"]) for name, each in report.items()}
    assert sends["1 dtypes, 1"] == len(ELEMENTS)
    assert sends[f"1 dtypes, {1 << 40}"] == 1
    assert sends[f"2 dtypes, {1 << 40}"] == 2
    assert sends["1 dtypes, [1, 3, 5]"] == 3
    assert report["1 dtypes, 1000"]["sent"] == [[8, 7], [12000], [1, 5, 12]]


@in_runs_of("wire_plan")
def test_splits_set_for_the_process(ranks):
    report = ranks.same("process_wide_splits")
    assert report["idx"] == [[8], [7, 12000, 1, 5, 12]]
    assert report["size over idx"] == [[8, 7, 12000], [1], [5, 12]]
    assert report["own over both"] == [ELEMENTS[::-1]]
    assert report["cleared"] == [ELEMENTS[::-1]]


@in_runs_of("wire_plan")
def test_split_by_a_wrong_index(ranks):
    message = ranks.same("wrong_index")
    assert "6 gradients are sent" in message
    assert "indices=(1, 7)" in message


@in_runs_of("wire_plan")
def test_description_of_the_plan(ranks):
    lines = [line.split() for line in ranks.same("described").splitlines()]
    assert lines[0] == ["segment", "dtype", "variables", "count", "bytes"]
    assert lines[1] == ["0", "float32", "v5", "..", "v4", "2", "60", "B"]
    assert lines[2] == ["1", "float32", "v3", "1", "46.9", "KiB"]
    assert lines[-1] == ["total", "6", "47.0", "KiB"]


@in_runs_of("wire_plan")
def test_last_layers_go_first(ranks):
    assert ranks.same("last_layers_first") == [[n] for n in ELEMENTS[::-1]]


@in_runs_of("wire_plan")
def test_mean_and_sum(ranks):
    assert ranks.same("sum_and_mean") == [-1.5, -3.0]
