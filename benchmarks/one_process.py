# SPDX-License-Identifier: Apache-2.0
"""Comparisons within one process: the check, loss scaling, the logger, the import."""

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.contestants import Setting
from benchmarks.harness import Row, Timed, in_turns

PLAIN, OURS, KERAS = "plain", "NPUOptimizer", "keras LossScaleOptimizer"


def overflow_check(setting: Setting) -> Iterator[Row]:
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

            row = in_turns(
                f"overflow check, {label} tensors{', XLA' if xla else ''}",
                {"Keras' check": keras_way, "ours": ours, "one reduce_sum": one_pass},
                turns=10 if setting.quick else 30,
                warm_up=3,
                target={"ours": 0.65},
            )
            yield row
            yield from row.against("one reduce_sum", {"ours": 1.15})


def ways_of(
    optimizer: Callable[[], Any], *, against_keras: bool = True, **settings: Any
) -> dict[str, Callable[[], None]]:
    """Returns a step of an optimizer by itself, in ours and in Keras' wrapper.

    Args:
        optimizer: makes the optimizer.
        against_keras: whether Keras' wrapper takes part.
        settings: of `models.stepper`.
    """
    from benchmarks import models

    wrappers = {PLAIN: lambda own: own, OURS: models.scaled, KERAS: models.wrapped}
    names = list(wrappers) if against_keras else [PLAIN, OURS]
    return {name: models.stepper(wrappers[name](optimizer()), **settings) for name in names}


def several(ways: dict[str, Callable[[], None]], steps: int) -> dict[str, Callable[[], None]]:
    """Makes each way one of several steps."""

    def repeated(step: Callable[[], None]) -> Callable[[], None]:
        return lambda: [step() for _ in range(steps)] and None

    return {name: repeated(step) for name, step in ways.items()}


def loss_scaling(setting: Setting) -> Iterator[Row]:
    """A step of `fit` of 9.5 M parameters, by optimizer."""
    from keras import optimizers

    makers: dict[str, tuple[Callable[[], Any], float]] = {
        "Adam": (lambda: optimizers.Adam(1e-4), 0.9),
        "AdamW": (lambda: optimizers.AdamW(1e-4), 1.03),
        "Lamb": (lambda: optimizers.Lamb(1e-4), 1.03),
        "SGD with momentum": (lambda: optimizers.SGD(1e-4, momentum=0.9), 1.03),
    }
    for name in ("Adam",) if setting.quick else makers:
        make, target = makers[name]
        ways = ways_of(make, against_keras=name == "Adam")
        yield in_turns(
            f"step of 9.5 M parameters, {name}",
            several(ways, 3),
            turns=6 if setting.quick else 10,
            target={OURS: target},
        )


def loss_scaling_xla(setting: Setting) -> Iterator[Row]:
    """The same with the whole step compiled by XLA."""
    from keras import optimizers

    ways = several(ways_of(lambda: optimizers.Adam(1e-4), jit_compile=True), 3)
    row = in_turns(
        "step of 9.5 M parameters, Adam, XLA",
        ways,
        turns=6 if setting.quick else 10,
        target={OURS: 1.4},
    )
    yield row
    yield from row.against(KERAS, {OURS: 0.65})


def many_variables(setting: Setting) -> Iterator[Row]:
    """Many small variables: the time that is added, and the time until the first step is done."""
    from keras import optimizers

    from benchmarks import models

    layers = 40 if setting.quick else 200
    name = f"{2 * layers} small variables, Adam"
    ways = ways_of(lambda: optimizers.Adam(1e-4), make=functools.partial(models.deep, layers))
    first = []
    for way, step in ways.items():
        begin = time.perf_counter()
        step()
        first.append(Timed(way, [time.perf_counter() - begin]))
    row = in_turns(name, several(ways, 3), turns=10 if setting.quick else 15)
    yield row
    yield from row.added(PLAIN, KERAS, {OURS: 0.25})
    yield Row(f"{name}: first step", first, {OURS: 1.15})


def transformer(setting: Setting) -> Iterator[Row]:
    """A transformer of 3.4 M parameters with a sparse embedding, with and without XLA."""
    from keras import optimizers

    from benchmarks import models

    for xla in (False,) if setting.quick else (False, True):
        yield in_turns(
            f"step of a transformer, 3.4 M parameters, Adam{', XLA' if xla else ''}",
            ways_of(
                lambda: optimizers.Adam(1e-4),
                against_keras=False,
                make=models.transformer,
                jit_compile=xla,
            ),
            turns=4 if setting.quick else 6,
            target={OURS: 1.4 if xla else 1.0},
        )


def logging(setting: Setting) -> Iterator[Row]:
    """`LossScaleLogger` with a file of events and TensorBoard, against the same fit without.

    Both fit one model: two differ by up to half in speed, by where their weights lie in memory.
    """
    import keras

    from benchmarks.models import fits, scaled
    from npu_keras.callbacks import LossScaleLogger

    steps = 20
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
                turns=4,
                target={"LossScaleLogger": 1.01},
            )


def importing(setting: Setting) -> Iterator[Row]:
    """`import npu_keras` in a new process, against `import keras`; others have read the files."""

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    yield in_turns(
        "a process that imports",
        {"keras": run("import keras"), "npu_keras": run("import keras, npu_keras")},
        turns=2,
        warm_up=0,
    )
