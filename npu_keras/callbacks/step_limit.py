# SPDX-License-Identifier: Apache-2.0
"""The same number of steps on all ranks, whatever data each of them has."""

from typing import Any

from npu_keras import cluster
from npu_keras.callbacks.base import Callback


class StepLimit(Callback):
    """Ends training on every rank after the same number of steps.

    Ranks take their steps together, so one with more batches than another would wait for it in
    vain. Steps are counted from the begin of training over all epochs, one a batch, skipped ones
    included. The limit is not to be above what any rank can do; `npu_keras.distribute.equal_steps`
    cuts the data to that instead.

    With `steps_per_execution=k` a model can only stop after k batches. The limit must be a multiple
    of k, and so must each rank's batches in an epoch, if there is more than one: Keras 3 counts a
    shorter last block as a whole one.

    It adds no key to the logs.

    Args:
        steps: number of steps, at least 1; by default `--steps` of `python -m npu_keras run`.

    Raises:
        ValueError: if there is no limit or it is below 1; after the first batches, if training
            cannot stop there because of `steps_per_execution`.

    Example:

    ```python
    model.fit(dataset, epochs=100, callbacks=[npu_keras.callbacks.StepLimit(10_000)])
    ```
    """

    def __init__(self, steps: int | None = None) -> None:
        super().__init__()
        limit = cluster.step_limit() if steps is None else steps
        if limit is None:
            raise ValueError(
                "StepLimit needs a number of steps that every rank can take. Received: steps=None, "
                "and no limit from the launcher. Give `StepLimit(steps)`, or `--steps N` to "
                "`python -m npu_keras run`."
            )
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"`steps` must be a whole number of at least 1. Received: {steps=}")
        self.steps = limit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts to count."""
        self._taken = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes that batches are numbered from 0 again."""
        self._taken_in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts, and stops at the limit."""
        block = batch + 1 - self._taken_in_epoch  # several with `steps_per_execution`
        first = self._taken == 0
        self._taken_in_epoch = batch + 1
        self._taken += block
        if self._taken > self.steps or (first and self.steps % block):
            raise ValueError(
                "Training cannot stop after the limit, because the model takes several steps at "
                f"once. Received: steps={self.steps}, and {block} steps at once. Make `steps` a "
                "multiple of `steps_per_execution`."
            )
        if self._taken == self.steps:
            self.model.stop_training = True
