# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks still have the same weights."""

import hashlib
from typing import Any

import numpy as np

from npu_keras import distribute
from npu_keras.callbacks.base import Callback
from npu_keras.callbacks.host_model import common_variables
from npu_keras.engines import Engine
from npu_keras.journal import read
from npu_keras.startup import variable_name


class ConsistencyCheck(Callback):
    """Compares the weights and the optimizer's variables of all ranks, bit for bit.

    Ranks that take their steps together stay equal. What makes them drift apart is, for example, a
    callback that changes the learning rate on one rank, a weight assigned by hand, or a layer with
    an update of its own.

    Compared are hashes of the weights, frozen ones included, and of the optimizer's variables.
    Not compared is what each rank has of its own: the statistics of normalisation layers and other
    variables that a layer made as non-trainable, random generators, metrics, sums of gradients that
    are still to be sent, and the slots of other ranks with `is_weight_update_sharding=True`.
    One rank alone does nothing.

    It adds no key to the logs.

    Args:
        every: `"epoch"`, or a number of batches of at least 1; with `steps_per_execution` the check
            comes after the execution in which the number was reached. Each check reads all weights.

    Raises:
        ValueError: for another `every`.
        RuntimeError: on every rank, if they differ; names the first variable and the rank that has
            another value than rank 0.
        EngineTimeout: if a rank is missing.

    Example:

    ```python
    model.fit(dataset, callbacks=[npu_keras.callbacks.ConsistencyCheck(every=1000)])
    ```
    """

    def __init__(self, every: int | str = "epoch") -> None:
        super().__init__()
        whole = isinstance(every, int) and not isinstance(every, bool) and every >= 1
        if every != "epoch" and not whole:
            raise ValueError(
                f'`every` must be "epoch" or a number of batches of at least 1. Received: {every=}'
            )
        self.every = every

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts to count batches."""
        self._unchecked = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes that batches are numbered from 0 again."""
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares, if it is time to."""
        self._unchecked += batch + 1 - self._seen  # several with `steps_per_execution`
        self._seen = batch + 1
        if isinstance(self.every, int) and self._unchecked >= self.every:
            self._unchecked = 0
            self._check()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares, if it is time to."""
        if self.every == "epoch":
            self._check()

    def _check(self) -> None:
        if distribute.size() > 1:
            require_same_values(distribute.engine(), common_variables(self.model))


def require_same_values(engine: Engine, variables: list[Any]) -> None:
    """Raises on every rank if variables differ between ranks.

    Args:
        engine: how the ranks talk.
        variables: the same variables in the same order on all ranks.

    Raises:
        RuntimeError: if they differ.
    """
    own = [hashlib.sha256(np.ascontiguousarray(read(v)).tobytes()).hexdigest() for v in variables]
    whole = hashlib.sha256("".join(own).encode()).hexdigest()
    if len(set(engine.exchange(whole, "hashes of all weights"))) == 1:
        return
    everyone = engine.exchange(own, "hashes of each weight")
    names = [variable_name(variable) for variable in variables]
    for name, *digests in zip(names, *everyone, strict=True):
        others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise RuntimeError(
                f"The ranks have drifted apart. The first variable that differs is {name!r}: "
                f"{_ranks(others)} another value than rank 0. Look for what changes it on some "
                "ranks only, such as a callback that acts on a rank's own logs (put MetricAverage "
                "before it), or begin with `npu_keras.callbacks.BroadcastVariables()`."
            )


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    return f"ranks {', '.join(map(str, ranks))} have"
