# SPDX-License-Identifier: Apache-2.0
"""Comparisons within one process: the check, loss scaling, the logger, the import."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Timed, in_turns

PLAIN, OURS, KERAS = "plain", "NPUOptimizer", "keras LossScaleOptimizer"


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

            row = in_turns(
                f"overflow check, {label} tensors{', XLA' if xla else ''}",
                {"Keras' check": keras_way, "ours": ours, "one reduce_sum": one_pass},
                turns=10 if quick else 30,
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


def loss_scaling(quick: bool) -> Iterator[Row]:
    """A step of `fit` of 9.5 M parameters, by optimizer."""
    from keras import optimizers

    makers: dict[str, tuple[Callable[[], Any], float]] = {
        "Adam": (lambda: optimizers.Adam(1e-4), 0.9),
        "AdamW": (lambda: optimizers.AdamW(1e-4), 1.03),
        "Lamb": (lambda: optimizers.Lamb(1e-4), 1.03),
        "SGD with momentum": (lambda: optimizers.SGD(1e-4, momentum=0.9), 1.03),
    }
    for name in ("Adam",) if quick else makers:
        make, target = makers[name]
        ways = ways_of(make, against_keras=name == "Adam")
        yield in_turns(
            f"step of 9.5 M parameters, {name}",
            several(ways, 3),
            turns=6 if quick else 12,
            target={OURS: target},
        )


def loss_scaling_xla(quick: bool) -> Iterator[Row]:
    """The same with the whole step compiled by XLA."""
    from keras import optimizers

    ways = several(ways_of(lambda: optimizers.Adam(1e-4), jit_compile=True), 3)
    row = in_turns(
        "step of 9.5 M parameters, Adam, XLA", ways, turns=6 if quick else 10, target={OURS: 1.4}
    )
    yield row
    yield from row.against(KERAS, {OURS: 0.65})


def many_variables(quick: bool) -> Iterator[Row]:
    """Many small variables: the time that is added, and the time until the first step is done."""
    layers = 40 if quick else 200
    name = f"{2 * layers} small variables, Adam"
    ways, first = first_steps(layers, {PLAIN, OURS, KERAS})
    row = in_turns(name, several(ways, 3), turns=10 if quick else 15)
    yield row
    yield from row.added(PLAIN, KERAS, {OURS: 0.25})
    yield Row(f"{name}: first step", first, {OURS: 1.15})


def more_variables(quick: bool) -> Iterator[Row]:
    """The step and the first step of a model of more variables than people make by hand."""
    layers = 50 if quick else 500
    name = f"growth: {2 * layers} small variables, Adam"
    ways, first = first_steps(layers, {PLAIN, OURS})
    yield in_turns(name, several(ways, 3), turns=5)
    yield Row(f"{name}: first step", first, {OURS: 1.15})


def first_steps(layers: int, wanted: set[str]) -> tuple[dict[str, Callable[[], None]], list[Timed]]:
    """Takes the first step of a deep model in some ways.

    Returns:
        Functions of a further step, and how long the first one took.
    """
    import functools

    from keras import optimizers

    from benchmarks import models

    wrappers = {PLAIN: lambda own: own, OURS: models.scaled, KERAS: models.wrapped}
    ways, first = {}, []
    for way in (name for name in wrappers if name in wanted):
        make = functools.partial(models.deep, layers)
        ways[way] = models.stepper(wrappers[way](optimizers.Adam(1e-4)), make)
        begin = time.perf_counter()
        ways[way]()
        first.append(Timed(way, [time.perf_counter() - begin]))
    return ways, first


def transformer(quick: bool) -> Iterator[Row]:
    """A transformer of 3.4 M parameters with a sparse embedding, with and without XLA."""
    from keras import optimizers

    from benchmarks import models

    for xla in (False,) if quick else (False, True):
        yield in_turns(
            f"step of a transformer, 3.4 M parameters, Adam{', XLA' if xla else ''}",
            several(
                ways_of(lambda: optimizers.Adam(1e-4), make=models.transformer, jit_compile=xla), 2
            ),
            turns=4 if quick else 6,
            target={OURS: 1.4 if xla else 1.0},
        )


def growth(quick: bool) -> Iterator[Row]:
    """The time that loss scaling takes of a step of SGD, by the number of parameters."""
    import functools

    import keras

    from benchmarks import models

    def wide(units: int) -> Any:
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(units) for _ in range(2)]
        return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])

    for units, size in ((950, "1 M"), (3100, "10 M"), (9900, "100 M"))[: 2 if quick else 3]:
        make = functools.partial(wide, units)
        ways = {
            PLAIN: models.stepper(keras.optimizers.Adam(1e-4), make),
            OURS: models.stepper(models.scaled(keras.optimizers.Adam(1e-4)), make),
        }
        yield in_turns(f"growth: {size} parameters, Adam", ways, turns=4)


def logging(quick: bool) -> Iterator[Row]:
    """`LossScaleLogger` with a file of events and TensorBoard, against the same fit without.

    Both fit one model: two differ by up to half in speed, by where their weights lie in memory.
    """
    import keras

    from benchmarks.models import fits, scaled
    from npu_keras.callbacks import LossScaleLogger

    steps = 20 if quick else 30
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


def importing(quick: bool) -> Iterator[Row]:
    """`import npu_keras` in a new process, against `import keras`."""

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    yield in_turns(
        "a process that imports",
        {"keras": run("import keras"), "npu_keras": run("import keras, npu_keras")},
        turns=2,
    )
