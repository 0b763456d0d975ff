# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import numpy as np
import pytest

from npu_keras.epoch_record import of_csv, of_history

COLUMNS = {
    "loss": [3.0, 2.0, 1.0],
    "loss_scale": [2.0**15, 2.0**14, 2.0**16],
    "overflow_rate": [0.1, 0.25, 0.0],
    "scale_growths": [1.0, 1.0, 3.0],
    "scale_backoffs": [1.0, 2.0, 2.0],
    "skipped_steps": [2.0, 7.0, 7.0],
}


def history(columns=COLUMNS, first=0):
    count = len(next(iter(columns.values())))
    return SimpleNamespace(history=columns, epoch=list(range(first, first + count)))


def write(path, columns=COLUMNS, separator=",", extra=""):
    rows = [["epoch", *columns], *([i, *row] for i, row in enumerate(zip(*columns.values())))]  # noqa: B905
    path.write_text("\n".join(separator.join(map(str, row)) for row in rows) + "\n" + extra)
    return str(path)


def values(record):
    return [column.tolist() for column in record[:5]]


EXPECTED = [
    [1, 2, 3],
    [2.0**15, 2.0**14, 2.0**16],
    [0.1, 0.25, 0.0],
    [1, 0, 2],
    [1, 1, 0],
]


def test_a_history_holds_totals_and_the_record_what_each_epoch_adds():
    record = of_history(history())
    assert values(record) == EXPECTED
    assert (record.skipped, record.headline) == (7, "Loss scale: 3 epochs, 7 skipped steps")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_file_says_the_same(tmp_path, separator):
    assert values(of_csv(write(tmp_path / "a.csv", separator=separator))) == EXPECTED


def test_a_prefix_is_found(tmp_path):
    columns = {f"fp16/{name}": column for name, column in COLUMNS.items()}
    assert values(of_history(history(columns))) == EXPECTED
    assert values(of_csv(write(tmp_path / "a.csv", columns))) == EXPECTED


def test_what_came_before_the_first_epoch_is_not_guessed():
    record = of_history(history(first=4))
    assert record.epochs.tolist() == [5, 6, 7]
    np.testing.assert_array_equal(record.growths, [np.nan, 0, 2])


def test_a_scale_alone_is_enough():
    record = of_history(history({"loss_scale": [8.0, 4.0]}))
    assert np.isnan([record.rates, record.growths, record.back_offs]).all()
    assert (record.skipped, record.headline) == (None, "Loss scale: 2 epochs")


def test_rows_that_cannot_be_read_are_counted(tmp_path):
    extra = "3,x\nnan,1,1,1,1,1,1\n4,1,,0,0,0,0\n" + "9" * 70_000 + '\n\n5,1,8,0,3,2,"7"\n6,1'
    record = of_csv(write(tmp_path / "a.csv", extra=extra))
    assert record.epochs.tolist() == [1, 2, 3, 6]
    assert record.notes == ["5 rows of the file could not be read"]


@pytest.mark.parametrize("text", ["", "epoch,loss\n0,1\n", "\0\0\n", "9" * 70_000])
def test_without_loss_scales_the_error_says_how_to_get_them(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=r"`LossScaleLogger\(\)` first in the list"):
        of_csv(str(tmp_path / "a.csv"))
