# SPDX-License-Identifier: Apache-2.0
"""`make demo-distributed`: the digits on two processes, with an overflow on one of them only."""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_keras import cluster, demo
from npu_keras.digits import BATCH_SIZE, SEED, Digits, inner_optimizer, load_digits, loss, network

FAULTY_STEP = 100
"""The step in which rank 1 gets negatives of its images, a thousand times too bright."""

_COMMAND = "python -m npu_keras run -n 2 -m npu_keras.demo_distributed"


class Report(NamedTuple):
    """What a rank knows after its training."""

    row: demo.Result
    weights: str


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one rank of the demo.

    Args:
        argv: arguments of the command line, without the program.

    Returns:
        The exit status: 0, 1 if a package is missing or the ranks ended with different weights,
        2 if there are no ranks.
    """
    arguments = demo.parser(
        _COMMAND,
        "Trains a small network on scikit-learn's handwritten digits in mixed_float16, each "
        "process with its share of each batch, and compares it with one process alone.",
    ).parse_args(argv)
    if cluster.find().size == 1:
        print(f"Expected several processes, found one. Start with: {_COMMAND}", file=sys.stderr)
        return 2
    if not demo.packages_are_there("sklearn"):
        return 1
    return run(arguments.output, arguments.epochs)


def run(output: Path, epochs: int) -> int:
    """Trains on all ranks together, then on rank 0 alone; rank 0 tells.

    Args:
        output: the folder for the events.
        epochs: epochs of each training.

    Returns:
        0, or 1 if the weights of the ranks differ.
    """
    from npu_keras import distribute

    engine = distribute.engine()  # before TensorFlow makes its first tensor
    digits = load_digits()
    faulty = min(FAULTY_STEP, epochs * _steps(digits))
    if engine.rank == 0:
        print(_introduction(digits, engine, faulty), flush=True)
    own = train(digits, epochs, faulty, together=True, events=output / "distributed.jsonl")
    hashes = engine.exchange(own.weights, "weights")
    if engine.rank == 0:
        print("Now the same on one process, for comparison ...", flush=True)
        alone = train(digits, epochs, faulty, together=False, events=None)
        print("\n".join(["", *demo.table([own.row, alone.row]), "", _verdict(hashes)]), flush=True)
    return int(len(set(hashes)) > 1)


def train(
    digits: Digits, epochs: int, faulty: int, *, together: bool, events: Path | None
) -> Report:
    """Trains one model.

    Args:
        digits: the data.
        epochs: how many epochs.
        faulty: the step in which rank 1 overflows.
        together: whether all ranks train it, each with its share of each batch.
        events: the file for the events, or None.
    """
    from npu_keras import distribute
    from npu_keras.callbacks import LossScaleLogger

    rank, size = (distribute.rank(), distribute.size()) if together else (0, 1)
    model = network("mixed_float16", SEED + rank)  # rank 0's weights will replace the others'
    optimizer = _optimizer(together)
    model.compile(optimizer, loss=loss(), metrics=["accuracy"])
    speaks = together and rank == 0
    if events is not None and speaks:
        events.unlink(missing_ok=True)
    share = distribute.shard_and_rebatch_dataset if together else _all_of_it
    started = time.perf_counter()
    model.fit(
        batches(digits, epochs, faulty, share), epochs=epochs, steps_per_epoch=_steps(digits),
        callbacks=[LossScaleLogger(jsonl=events, verbose=int(speaks))], verbose=2 * int(speaks),
        shuffle=False,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    accuracy = model.evaluate(digits.test_images, digits.test_labels, verbose=0)[1]
    counters = optimizer.journal.snapshot()
    row = demo.Result(
        f"{size} processes, shared batches" if together else "1 process, whole batches",
        counters.attempted_steps, counters.skipped_steps, counters.loss_scale, accuracy, seconds,
    )  # fmt: skip
    return Report(row, _digest(model.get_weights()))


def batches(
    digits: Digits, epochs: int, faulty: int, share: Callable[[Any, int], tuple[Any, int]]
) -> Any:
    """Returns a dataset of all batches of all epochs: images (n, 64) float32 and labels (n,).

    Args:
        digits: the data.
        epochs: how many epochs.
        faulty: number of the step, from 1, in which the second share of the batch is spoilt.
        share: returns a rank's part of a dataset, and of a batch size.
    """
    import tensorflow as tf

    from npu_keras import distribute

    ranks = distribute.size()

    def spoil(number: Any, element: Any) -> Any:
        image, label = element
        bad = (number // BATCH_SIZE == faulty - 1) & (number % ranks == 1)
        return tf.where(bad, 1000.0 * (1.0 - image), image), label

    tf.random.set_seed(SEED)  # part of the seed of `shuffle`: all ranks need the same order
    data = tf.data.Dataset.from_tensor_slices((digits.train_images, digits.train_labels))
    data = data.shuffle(len(data), seed=SEED).take(_steps(digits) * BATCH_SIZE).repeat(epochs)
    data, batch_size = share(data.enumerate().map(spoil), BATCH_SIZE)
    return data.batch(batch_size, drop_remainder=True)


def _all_of_it(data: Any, batch_size: int) -> tuple[Any, int]:
    return data, batch_size


def _steps(digits: Digits) -> int:
    return len(digits.train_labels) // BATCH_SIZE


def _optimizer(together: bool) -> Any:
    import npu_keras

    manager = npu_keras.ExponentialUpdateLossScaleManager(
        2.0**12, incr_every_n_steps=80, decr_every_n_nan_or_inf=1, decr_ratio=0.5
    )
    return npu_keras.NPUOptimizer(
        inner_optimizer(), manager, is_distributed=together, is_loss_scale=True
    )


def _digest(weights: Sequence[Any]) -> str:
    content = hashlib.sha256()
    for array in weights:
        content.update(array.tobytes())
    return content.hexdigest()


def _introduction(digits: Digits, engine: Any, faulty: int) -> str:
    return (
        f"{len(digits.train_labels)} handwritten digits, mixed_float16, on {engine.size} processes "
        f"by the {engine.name} engine.\nEach batch of {BATCH_SIZE} is shared among them. In step "
        f"{faulty} rank 1 gets negatives, a thousand times too\nbright, so that its gradients "
        "overflow: all ranks skip that step together.\n"
    )


def _verdict(hashes: Sequence[str]) -> str:
    lines = [f"  rank {rank}  {text[:16]}" for rank, text in enumerate(hashes)]
    same = "equal" if len(set(hashes)) == 1 else "DIFFERENT"
    return "\n".join([f"Weights after training, SHA-256 ({same} on all ranks):", *lines])


if __name__ == "__main__":
    sys.exit(main())
