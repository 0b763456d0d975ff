# SPDX-License-Identifier: Apache-2.0
import pytest

from npu_keras.words import name_text, scale_text, share_text, steps_text


@pytest.mark.parametrize(
    "scale, text",
    [(65536.0, "2**16"), (512.0, "512"), (3355443.2, "3.355e+06"), (2.0**-14, "2**-14")]
    + [(0.0, "0"), (float("inf"), "inf")],
)
def test_scales(scale, text):
    assert scale_text(scale) == text


@pytest.mark.parametrize(
    "part, whole, text",
    [(0, 0, "0 %"), (0, 9, "0 %"), (1, 8, "12.5 %"), (1, 10**6, "<0.1 %"), (9, 9, "100 %")]
    + [(99_999, 100_000, ">99.9 %"), (999, 1000, "99.9 %")],
)
def test_shares_never_round_to_all_or_nothing(part, whole, text):
    assert share_text(part, whole) == text


def test_steps():
    assert steps_text([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert steps_text([1, 3, 5, 7, 9, 10]) == "1, 3, 5, 7 and 2 more"


def test_names_cannot_move_the_cursor_or_fill_the_screen():
    assert name_text("net/dense/kernel") == "net/dense/kernel"
    assert name_text("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"
    assert name_text("a" * 500 + "/kernel", longest=21) == "a" * 10 + "…" + "aaa/kernel"
