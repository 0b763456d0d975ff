# SPDX-License-Identifier: Apache-2.0
"""Scripts in the patterns of the public model zoo, through `python -m npu_keras.ascend`.

Each runs alone, and most on two ranks. Many have a gradient of 1 on rank 0 and of 3 on rank 1, the
mean being the number of ranks, and let the last rank alone overflow.
"""

import contextlib
import tempfile
from pathlib import Path

import pytest
from running import SIZES, read, start, wait

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(400)]

RUNNER = str(Path(__file__).parent / "run_scripts.py")
GRAPH = (
    *("bert_accumulating", "bert_clipping", "custom_inner", "two_without_scale"),
    *("keras_checkpoint", "keras_scaled", "update_ops", "manual_allreduce", "fixed_unchecked"),
    *("chosen_by_number", "custom_manager", "gan", "session_loop"),
    *("double_scaling", "fetched_decision", "never_scaled", "saved_scale"),
)
EAGER = (
    *("keras_wrapped", "keras_tape", "tf2_bert", "tf2_assigned", "tf2_wrapped"),
    *("tf2_manual_scale", "tf2_fit", "tf2_gan", "collectives", "saturating_ranks"),
)


@pytest.fixture(scope="module")
def outputs():
    """What the scripts printed, alone and on two ranks; both run side by side."""
    with contextlib.ExitStack() as stack:
        files = {size: stack.enter_context(tempfile.TemporaryFile()) for size in SIZES}
        arguments = [RUNNER, *EAGER, "--", *GRAPH]
        return wait([start(size, file, arguments) for size, file in files.items()], files)


@pytest.fixture
def run(outputs):
    """Returns what a script left, the same on all ranks."""

    def get(name, size, *, same=True):
        text = outputs[size]
        results = read(text, size)
        assert name in results, text[-4000:]
        if not same:
            return results[name]
        assert all(result == results[name][0] for result in results[name])
        return results[name][0]

    return get


both = pytest.mark.parametrize("size", SIZES)


@both
def test_bert_with_accumulation(run, size):
    """The manager moves once for each application; the flag chooses the scale."""
    (w, steps, scale, good), others = run("bert_accumulating", size)
    assert [w, steps, scale, good] == [0.0, 2.0, 2.0**15, 1.0]
    assert others == [1.0, 1024.0, 1.0, 1.0, "Invalid loss scale: 0"]


@both
def test_bert_with_clipping(run, size):
    """Each gradient of the mean is (3, 4), clipped to length 1; two overflows halve 2**32."""
    weights, steps, scale = run("bert_clipping", size)
    assert weights == pytest.approx([0.4, 0.2])
    assert (steps, scale) == (2, 2.0**31)


@both
def test_an_optimizer_of_the_script_inside(run, size):
    assert run("custom_inner", size) == [[1 - 0.5 * size, 1.0]] * 2


@both
def test_two_optimizers_without_scale(run, size):
    assert run("two_without_scale", size) == [1 - 0.5 * size, [1.0, 1.0, 0.5]]


@both
def test_tensorflow_1_optimizer_in_compile(run, size):
    weights, restored, scale, good = run("keras_checkpoint", size)
    assert restored == weights
    assert weights == pytest.approx([0.0, 0.0], abs=1e-5)  # two steps of Adam with rate 0.5
    assert (scale, good) == (2.0**32, 2)


@both
def test_both_nestings_in_compile(run, size):
    """The loss is (w x)**2 with x = 1, and 2 on rank 1; no callback of a tuple is lost."""
    w = 1.0
    for _ in range(2):
        w -= 0.5 * 2 * w * {1: 1.0, 2: 2.5}[size]
    assert run("keras_scaled", size) == [[2, w]] * 2


@both
def test_behind_the_updates_of_statistics(run, size):
    assert run("update_ops", size) == [1 - 0.5 * size, 2.0, 1.0]


@both
def test_reduced_by_hand(run, size):
    """A checkpoint without the scale leaves it at its start."""
    w = 1 - 0.5 * size
    assert run("manual_allreduce", size) == [[w, 2.0**31], [w, 2.0**32]]


@both
def test_fixed_scales(run, size):
    """Without the check an infinity is applied, here clipped to 50."""
    w = 1 - 0.5 * size
    assert run("fixed_unchecked", size) == [
        [w - 25.0, 2097156.0],
        [w, 2.0**32],
    ]


@both
def test_scale_chosen_by_number(run, size):
    w = 1 - 0.5 * size
    assert run("chosen_by_number", size) == [[w, 0.0], [w, 4096.0], [w, 512.0]]


@both
def test_two_optimizers_of_a_gan(run, size):
    """Each has a scale and a decision of its own, unless one optimizer trains both."""
    apart, shared, combined = run("gan", size, same=False)[0]
    assert apart == [1.0, 1 - 0.5 * size, 128.0, 256.0]
    assert "Each optimizer needs its own loss-scale manager" in shared
    assert combined == [1.0, 1.0, 128.0]


@both
def test_scale_in_checkpoints(run, size):
    """Bad steps add up, 2**127 is the top, and float16 is in range after 34 skipped steps."""
    log, before, after, tops, names = run("saved_scale", size)
    assert (log, before) == (2.0**32, [2.0**32, 0.0, 1.0])
    assert after == before
    assert tops == [2.0**65, 2.0**127, [34, 2.0**15]]
    assert names == [f"loss_scaling/{name}" for name in ("bad_steps", "good_steps", "loss_scale")]


@both
def test_session_loop(run, size):
    for rank, result in enumerate(sorted(run("session_loop", size, same=False))):
        ranks, refused, hooks, values, activation = result
        assert ranks == [rank, rank, size, rank]
        assert refused == [False, True, True, False]
        assert hooks == 2
        assert values == [1 - 0.5 * size, 0.5, 1.0]
        assert activation == 0.841


@both
def test_scaling_twice_is_reported(run, size):
    (message,), w = run("double_scaling", size)
    assert "The loss depends on the loss scale already" in message
    assert w == 1 - 0.5 * 2**4


@both
def test_never_scaling_is_reported(run, size):
    w, (message,) = run("never_scaled", size)
    assert w == 0.5
    assert "nothing is scaled" in message


@both
def test_a_manager_of_the_script(run, size):
    """Its ceiling is 2**14, and the clipped mean of 1 and 3 is applied twice."""
    scales, values, summarized = run("custom_manager", size)
    assert scales == [2.0**13, 2.0**14, 2.0**13, 2.0**14, 2.0**13]
    assert values == [1 - 2 * 0.25 * size, 2]
    assert summarized


@both
def test_fetching_the_decision_by_name(run, size):
    """The scale is that before the step."""
    w = 1 - 0.5 * size
    assert run("fetched_decision", size) == [
        [[2.0**32, False, 1.0, 1.0], [2.0**31, True, w, w]],
        2.0**31,
    ]


@both
def test_keras_optimizers_that_aggregate(run, size):
    assert run("keras_wrapped", size) == [1 - 0.5 * size, 1 - 0.5 * size, "SGD"]


@both
def test_keras_optimizer_in_a_loop(run, size):
    assert run("keras_tape", size) == [1 - 0.75 * size, 2, [0.5, 0.25]]


@both
def test_tf2_loop_by_hand(run, size):
    """A skipped step advances `iterations`, and is seen in `last_step_finite`."""
    result = run("tf2_bert", size)
    assert result.pop("w") == pytest.approx([0.4, 0.2])
    assert result == {
        "finite": [True, False, True],
        "loss_scale": 2.0**14,
        "counter": 1,
        "iterations": 3,
        "fixed": 1024.0,
        "is": True,
        "rate": 0.5,
        "refused": 2,
    }


@both
def test_tf2_optimizer_given_to_a_model(run, size):
    assert run("tf2_assigned", size) == 0.5


@both
def test_tf2_nestings_and_checkpoint(run, size):
    inside, outside, warned = run("tf2_wrapped", size)
    assert inside == outside == [1 - 0.5 * size, 2.0**14, 2, "NpuLossScaleOptimizer"]
    assert warned == [True]


@both
def test_tf2_scaled_by_a_constant(run, size):
    assert run("tf2_manual_scale", size) == [1 - 1.0 * size, 4]


@both
def test_tf2_fit(run, size):
    """The inputs are 1 and 3 in turn, so that a rank alone has half of them."""
    alone, together, batch_size, message = run("tf2_fit", size, same=False)[0]
    assert alone in {1: [0.5], 2: [0.75, 0.25]}[size]
    assert together == 0.5
    assert batch_size == 4 // size
    assert ("must be divisible by num npus: 2" in message) == (size == 2)


@both
def test_tf2_two_optimizers_and_sparse_gradients(run, size):
    g, d, rows, activation = run("tf2_gan", size)
    w = 1 - 0.5 * size
    assert (g, d, rows) == (w, [w, 1.0, w], [1.0, 1.0 - size])
    assert activation == pytest.approx([0.0, 0.845796])


@both
def test_collective_operations(run, size):
    """Rank r has [1 + r, 2 + r] and the row r of a table."""
    for rank, result in enumerate(sorted(run("collectives", size, same=False))):
        assert result[0] == rank
        assert (
            result[1:]
            == {
                1: [[1, 2], [1, 2], [1, 2], [1, 2], [1, 2], 1.0, [[5.0], [0.0]], [None, 2.0]],
                2: [
                    *([1, 2, 2, 3], [2, 6], [2, 3], [1, 2], [[3], [5]][rank], 2.0),
                    *([[2.5], [2.5]], [None, 3.0]),
                ],
            }[size]
        )


@both
def test_the_flag_of_one_rank_stops_all(run, size):
    assert run("saturating_ranks", size) == [1.0, 1, 1024.0]
