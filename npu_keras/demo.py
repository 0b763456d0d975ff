# SPDX-License-Identifier: Apache-2.0
"""`python -m npu_keras demo`: trains a small network in float16 and shows what its scale did."""

import argparse
import importlib.util
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_keras.digits import BATCH_SIZE, Digits, inner_optimizer, load_digits, loss, network

INITIAL_SCALE = 2.0**32
"""Far too high on purpose, to be seen coming down."""

EPOCHS = 12


class Result(NamedTuple):
    """One row of the summary; `scale` is None where there is no loss scaling."""

    name: str
    tried: int
    skipped: int
    scale: float | None
    accuracy: float
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo.

    Args:
        argv: arguments of the command line, without the program and the command.

    Returns:
        The exit status: 0, or 1 if a package is missing.
    """
    arguments = parser(
        "python -m npu_keras demo",
        "Trains a small network on scikit-learn's handwritten digits in mixed_float16, "
        "with a loss scale that starts far too high, and shows what the scale does.",
    ).parse_args(argv)
    if not packages_are_there("sklearn", "matplotlib"):
        return 1
    run(arguments.output, arguments.epochs)
    return 0


def packages_are_there(*names: str) -> bool:
    """Whether packages can be imported; says what to install if not.

    Args:
        names: names of the modules.
    """
    missing = [name for name in names if not importlib.util.find_spec(name)]
    if missing:
        text = " and ".join({"sklearn": "scikit-learn"}.get(name, name) for name in missing)
        print(
            f"The demo needs {text}. Install with: pip install 'npu-keras[demo]'", file=sys.stderr
        )
    # TensorFlow's remarks on the machine would stand between the lines of the demo.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return not missing


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Makes the parser of a demo's command line: `--output` and `--epochs`.

    Args:
        prog: the command.
        description: what it does.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument(
        "--output", metavar="DIR", type=Path, default=Path("demo"), help="default: %(default)s"
    )
    parser.add_argument(
        "--epochs", metavar="N", type=_positive, default=EPOCHS, help="default: %(default)s"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def run(output: Path, epochs: int) -> list[Result]:
    """Trains three times, prints a summary and writes a picture and two logs.

    Args:
        output: the folder for the files; earlier ones of the demo are replaced.
        epochs: epochs of each training.

    Returns:
        The rows of the summary.
    """
    import keras

    output.mkdir(parents=True, exist_ok=True)
    (output / "events.jsonl").unlink(missing_ok=True)
    digits = load_digits()
    policy = keras.config.dtype_policy()
    try:
        print(_introduction(digits))
        results = [
            train_scaled(digits, epochs, output),
            train_plain("float16, without loss scaling", "mixed_float16", digits, epochs),
            train_plain("float32", "float32", digits, epochs),
        ]
    finally:
        keras.config.set_dtype_policy(policy)
    print(summary(results, output))
    return results


def train_scaled(digits: Digits, epochs: int, output: Path) -> Result:
    """Trains in mixed_float16 with loss scaling, and writes the files of the demo.

    Args:
        digits: the data.
        epochs: how many epochs.
        output: the folder for the files.
    """
    import keras

    import npu_keras
    from npu_keras.callbacks import LossScaleLogger
    from npu_keras.plotting import plot_loss_scale, save

    manager = npu_keras.ExponentialUpdateLossScaleManager(
        INITIAL_SCALE, incr_every_n_steps=20, decr_every_n_nan_or_inf=2, decr_ratio=0.5
    )
    optimizer = npu_keras.NPUOptimizer(inner_optimizer(), manager, is_loss_scale=True)
    model = network("mixed_float16")
    model.compile(optimizer, loss=loss(), metrics=["accuracy"])
    losses = _batch_losses(model)
    callbacks = [
        LossScaleLogger(jsonl=output / "events.jsonl"),
        keras.callbacks.CSVLogger(output / "history.csv"),
        losses,
    ]
    result = _fit("float16, with loss scaling", model, digits, epochs, callbacks, verbose=1)
    counters = optimizer.journal.snapshot()
    save(plot_loss_scale(output / "events.jsonl", losses=losses.values), output / "loss_scale.png")
    return result._replace(
        tried=counters.attempted_steps, skipped=counters.skipped_steps, scale=counters.loss_scale
    )


def train_plain(name: str, policy: str, digits: Digits, epochs: int) -> Result:
    """Trains the same network without loss scaling.

    Args:
        name: of the row in the summary.
        policy: the dtype policy.
        digits: the data.
        epochs: how many epochs.
    """
    print(f"Now the same in {name}, for comparison ...", flush=True)
    model = network(policy)
    model.compile(inner_optimizer(), loss=loss(), metrics=["accuracy"], auto_scale_loss=False)
    return _fit(name, model, digits, epochs, [], verbose=0)


def _batch_losses(model: Any) -> Any:
    """A callback that keeps the loss of each batch; the logs hold the running mean."""
    import keras
    import tensorflow as tf

    latest = tf.Variable(math.nan, trainable=False)
    compute_loss = model.compute_loss

    def recording(*args: Any, **kwargs: Any) -> Any:
        value = compute_loss(*args, **kwargs)
        latest.assign(tf.cast(value, tf.float32))
        return value

    model.compute_loss = recording

    class BatchLosses(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.values: list[float] = []

        def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            self.values.append(float(latest.numpy()))

    return BatchLosses()


def _fit(
    name: str, model: Any, digits: Digits, epochs: int, callbacks: list[Any], verbose: int
) -> Result:
    started = time.perf_counter()
    model.fit(
        digits.train_images, digits.train_labels, batch_size=BATCH_SIZE, epochs=epochs,
        callbacks=callbacks, verbose=verbose,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    accuracy = model.evaluate(digits.test_images, digits.test_labels, verbose=0)[1]
    steps = epochs * math.ceil(len(digits.train_labels) / BATCH_SIZE)
    return Result(name, steps, 0, None, float(accuracy), seconds)


def _introduction(digits: Digits) -> str:
    return (
        f"{len(digits.train_labels)} handwritten digits, a network with one hidden layer, "
        "mixed_float16.\nThe loss scale starts at 2**32, far too high on purpose: the first steps "
        "overflow and are\nskipped, each pair of them halves the scale, and then training begins.\n"
    )


def summary(results: Sequence[Result], output: Path) -> str:
    """Returns the table of the runs and the list of files.

    Args:
        results: one entry per run.
        output: the folder of the files.
    """
    from npu_keras.callbacks.wording import scale_text

    lines = ["", *table(results), "", _lesson(scale_text(results[0].scale or 1.0))]
    files = {
        "loss_scale.png": "the loss scale and the loss, step by step",
        "events.jsonl": "one line for each skipped step and each growth",
        "history.csv": "the log of each epoch",
    }
    lines += ["", "Written:"]
    lines += [f"  {output / name!s:<28} {text}" for name, text in files.items()]
    return "\n".join(lines)


def table(results: Sequence[Result]) -> list[str]:
    """Returns the lines of a table.

    Args:
        results: one entry per run.
    """
    from npu_keras.callbacks.wording import scale_text

    lines = [f"{'run':<31}{'steps tried':>12}{'skipped':>9}{'scale':>8}{'test accuracy':>15}"]
    for row in results:
        scale = "-" if row.scale is None else scale_text(row.scale)
        lines.append(
            f"{row.name:<31}{row.tried:>12}{row.skipped:>9}{scale:>8}{row.accuracy:>14.1%}"
        )
    return lines


def _lesson(scale: str) -> str:
    return (
        f"The scale found its level, {scale}, by itself. Here it tries a higher one after every\n"
        "20 good steps, which makes much to see and costs steps; every 1000 or 2000 is usual.\n"
        "A network as small as this one trains in float16 without loss scaling too, because its\n"
        "gradients are large enough; deeper ones lose small gradients to underflow."
    )
