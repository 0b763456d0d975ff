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

INITIAL_SCALE = 2.0**32
"""Far too high on purpose, to be seen coming down."""

BATCH_SIZE, EPOCHS, SEED = 32, 12, 7


class Digits(NamedTuple):
    """Images (n, 64) as float32 in 0 to 1 and labels (n,) from 0 to 9, in two parts."""

    train_images: Any
    train_labels: Any
    test_images: Any
    test_labels: Any


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
    arguments = _parser().parse_args(argv)
    missing = [name for name in ("sklearn", "matplotlib") if not importlib.util.find_spec(name)]
    if missing:
        names = " and ".join({"sklearn": "scikit-learn"}.get(name, name) for name in missing)
        print(
            f"The demo needs {names}. Install with: pip install 'npu-keras[demo]'", file=sys.stderr
        )
        return 1
    # TensorFlow's remarks on the machine would stand between the lines of the demo.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    run(arguments.output, arguments.epochs)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_keras demo",
        description="Trains a small network on scikit-learn's handwritten digits in mixed_float16, "
        "with a loss scale that starts far too high, and shows what the scale does.",
    )
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


def load_digits() -> Digits:
    """Returns scikit-learn's 1797 handwritten digits, a fifth of them for the test."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    images, labels = load(return_X_y=True)
    parts = train_test_split(
        (images / 16).astype("float32"), labels, test_size=0.2, random_state=SEED, stratify=labels
    )
    train_images, test_images, train_labels, test_labels = parts
    return Digits(train_images, train_labels, test_images, test_labels)


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
    optimizer = npu_keras.NPUOptimizer(_inner_optimizer(), manager, is_loss_scale=True)
    model = _network("mixed_float16")
    model.compile(optimizer, loss=_loss(), metrics=["accuracy"])
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
    model = _network(policy)
    model.compile(_inner_optimizer(), loss=_loss(), metrics=["accuracy"], auto_scale_loss=False)
    return _fit(name, model, digits, epochs, [], verbose=0)


def _network(policy: str) -> Any:
    import keras

    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(64, activation="relu", name="hidden"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10, dtype="float32", name="digits"),
        ]
    )


def _inner_optimizer() -> Any:
    import keras

    return keras.optimizers.AdamW(2e-3, weight_decay=1e-3)


def _loss() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _batch_losses(model: Any) -> Any:
    """A callback that keeps the loss of each batch; the logs hold the running mean."""
    import keras
    import tensorflow as tf

    latest = tf.Variable(math.nan, trainable=False)
    compute_loss = model.compute_loss

    def recording(*args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        latest.assign(tf.cast(loss, tf.float32))
        return loss

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

    lines = [f"\n{'run':<31}{'steps tried':>12}{'skipped':>9}{'scale':>8}{'test accuracy':>15}"]
    for row in results:
        scale = "-" if row.scale is None else scale_text(row.scale)
        lines.append(
            f"{row.name:<31}{row.tried:>12}{row.skipped:>9}{scale:>8}{row.accuracy:>14.1%}"
        )
    lines += ["", _lesson(scale_text(results[0].scale or 1.0))]
    files = {
        "loss_scale.png": "the loss scale and the loss, step by step",
        "events.jsonl": "one line for each skipped step and each growth",
        "history.csv": "the log of each epoch",
    }
    lines += ["", "Written:"]
    lines += [f"  {output / name!s:<28} {text}" for name, text in files.items()]
    return "\n".join(lines)


def _lesson(scale: str) -> str:
    return (
        f"The scale found its level, {scale}, by itself. Here it tries a higher one after every\n"
        "20 good steps, which makes much to see and costs steps; every 1000 or 2000 is usual.\n"
        "A network as small as this one trains in float16 without loss scaling too, because its\n"
        "gradients are large enough; deeper ones lose small gradients to underflow."
    )
