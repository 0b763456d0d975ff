# SPDX-License-Identifier: Apache-2.0
"""What is compared: each function measures one row or a few; a new one joins in `ALL`."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Row, in_turns


def overflow_check(quick: bool) -> Iterator[Row]:
    """The check of gradients without an overflow, against Keras' and one pass over the data."""
    import tensorflow as tf

    from npu_keras.overflow import INF_NAN, OverflowCheck

    check = OverflowCheck(INF_NAN, "float32")
    for label, count, elements in (("160 MB in 4", 4, 10_000_000), ("38 MB in 20", 20, 473_000)):
        gradients = [tf.random.normal([elements]) for _ in range(count)]
        for xla in (False, True):
            compiled = tf.function(jit_compile=True) if xla else tf.function

            @compiled
            def keras_way() -> tf.Tensor:
                finite = [tf.reduce_all(tf.math.is_finite(g)) for g in gradients]  # noqa: B023
                return tf.reduce_all(tf.stack(finite))

            @compiled
            def ours() -> tf.Tensor:
                return check.inspect(gradients).overflowed  # noqa: B023

            @compiled
            def one_pass() -> tf.Tensor:
                return tf.add_n([tf.reduce_sum(g) for g in gradients])  # noqa: B023

            yield in_turns(
                f"overflow check, {label} tensors{', XLA' if xla else ''}",
                {"Keras' check": keras_way, "ours": ours, "one reduce_sum": one_pass},
                turns=10 if quick else 40,
                warm_up=3,
                target={"ours": 0.65},
            )


def loss_scaling(quick: bool) -> Iterator[Row]:
    """A `fit` step of Adam: plain, in our optimizer, in Keras' wrapper."""
    import keras

    from benchmarks.models import fits, scaled

    steps = 10 if quick else 30
    yield in_turns(
        f"fit of {steps} steps, 9.5 M parameters, Adam",
        {
            "plain Adam": fits(keras.optimizers.Adam(1e-4), steps=steps),
            "NPUOptimizer": fits(scaled(keras.optimizers.Adam(1e-4)), steps=steps),
            "keras LossScaleOptimizer": fits(
                keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-4)), steps=steps
            ),
        },
        turns=4 if quick else 12,
        target={"NPUOptimizer": 1.03},
    )


def logging(quick: bool) -> Iterator[Row]:
    """`LossScaleLogger` with a file of events and TensorBoard, against the same fit without.

    Both fit one model: two differ by up to half in speed, by where their weights lie in memory.
    """
    import keras

    from benchmarks.models import fits, scaled
    from npu_keras.callbacks import LossScaleLogger

    steps = 20 if quick else 50
    with tempfile.TemporaryDirectory() as folder:
        for at_once in (1, steps):
            optimizer = scaled(keras.optimizers.SGD(1e-4))
            fit = fits(optimizer, steps=steps, steps_per_execution=at_once)

            def logged() -> None:
                events = Path(folder) / "events.jsonl"
                fit(LossScaleLogger(jsonl=events, log_dir=folder, verbose=0))  # noqa: B023

            yield in_turns(
                f"fit of {steps} steps, 9.5 M parameters, SGD, {at_once} at once",
                {"without logger": fit, "LossScaleLogger": logged},
                turns=10 if quick else 20,
                warm_up=2,
                target={"LossScaleLogger": 1.01},
            )


def importing(quick: bool) -> Iterator[Row]:
    """`import npu_keras` in a new process, against `import keras`."""

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    yield in_turns(
        "a process that imports",
        {"keras": run("import keras"), "npu_keras": run("import keras, npu_keras")},
        turns=3 if quick else 9,
    )


ALL = {
    "overflow_check": overflow_check,
    "loss_scaling": loss_scaling,
    "logging": logging,
    "import": importing,
}
