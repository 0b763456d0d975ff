# SPDX-License-Identifier: Apache-2.0
"""The same epoch logs on all ranks, so that all of them stop and slow down together."""

from typing import Any

from npu_keras import distribute
from npu_keras.callbacks.base import Callback
from npu_keras.callbacks.host_model import internals

VALIDATION = "val_"


class MetricAverage(Callback):
    """Averages the epoch logs over ranks, weighted by the samples that each rank has seen.

    Without it each rank sees the loss of its own data, and `EarlyStopping` or `ReduceLROnPlateau`
    may act on one rank alone, for which the others then wait in vain. Put it after callbacks that
    add to the logs and before those that act on them.

    | key in the epoch logs | meaning |
    | --- | --- |
    | each key there is | its mean over ranks; what all ranks agree on stays, bit for bit |

    Keys that begin with `val_` are weighted by the samples of the validation, the others by those
    of the training, as Keras' mean of the loss counts them: without skipped steps if
    `LossScaleLogger` keeps these out. Where no rank counts any, as with a `train_step` that keeps
    no mean of the loss, all ranks weigh the same. One rank alone changes nothing.

    Raises:
        RuntimeError: on every rank at the end of an epoch, if their logs have different keys.
        EngineTimeout: if a rank is missing.

    Example:

    ```python
    callbacks = [npu_keras.callbacks.MetricAverage(), keras.callbacks.EarlyStopping("val_loss")]
    model.fit(dataset, validation_data=validation, callbacks=callbacks)
    ```
    """

    _trained: float | None = None
    _validated = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the samples of the epoch before."""
        self._trained, self._validated = None, 0.0

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Notes the samples of the training, which validation starts to count anew."""
        if self._trained is None:
            self._trained = self._samples()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Notes the samples of the validation."""
        self._validated = self._samples()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages the logs in place."""
        if not logs or distribute.size() == 1:
            return
        trained = self._samples() if self._trained is None else self._trained
        own = [trained, self._validated, {key: float(value) for key, value in logs.items()}]
        logs.update(_averages(distribute.engine().exchange(own, "epoch logs")))

    def _samples(self) -> float:
        return internals(self.model).samples_in_loss(self.model)


def _averages(everyone: list[list[Any]]) -> dict[str, float]:
    """The means of every key, computed alike on all ranks."""
    _require_same_keys([logs for _, _, logs in everyone])
    means = {}
    for key in everyone[0][2]:
        weights = [row[1 if key.startswith(VALIDATION) else 0] for row in everyone]
        means[key] = _mean([row[2][key] for row in everyone], weights)
    return means


def _mean(values: list[float], weights: list[float]) -> float:
    if all(value == values[0] for value in values):
        return values[0]
    if not any(weights):
        weights = [1.0] * len(values)
    # A rank without samples has nothing to say, not even that its mean is NaN.
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)


def _require_same_keys(everyone: list[dict[str, float]]) -> None:
    for rank, logs in enumerate(everyone):
        if logs.keys() != everyone[0].keys():
            raise RuntimeError(
                "All ranks must log the same keys to average them. Received: "
                f"{sorted(everyone[0])} on rank 0, {sorted(logs)} on rank {rank}. Give every rank "
                "the same metrics, validation data and callbacks."
            )
