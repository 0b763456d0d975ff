# SPDX-License-Identifier: Apache-2.0
"""The loss scale in the epoch logs, in words and in a file."""

import logging
import math
from pathlib import Path
from typing import Any

import keras

from npu_keras._arguments import path
from npu_keras.callbacks import wording
from npu_keras.callbacks.base import Callback
from npu_keras.callbacks.forward_state import correct_loss, protect_forward_state
from npu_keras.callbacks.host_model import compute_dtypes
from npu_keras.callbacks.scaled import require_loss_scaled, speaks_for_all
from npu_keras.event_log import EventLog
from npu_keras.journal import Event, JournalReader, Snapshot
from npu_keras.scalar_log import ScalarLog
from npu_keras.state import RING_ROWS
from npu_keras.unscaled import unscaled_optimizers

_logger = logging.getLogger("npu_keras")


class LossScaleLogger(Callback):
    """Shows what the loss scale does, and keeps skipped steps out of statistics and logs.

    Put it first in the list of callbacks: `CSVLogger` and `TensorBoard` see only what callbacks
    before them have added to the logs. The progress bar and `History` see it anyway.

    | key in the epoch logs | meaning (all floats, present from the first epoch) |
    | --- | --- |
    | `loss_scale` | the loss scale of the next step |
    | `skipped_steps` | steps skipped because of an overflow, in total |
    | `overflow_rate` | share of this epoch's steps that were skipped, 0 to 1 |
    | `scale_growths` | how often the scale was raised, in total |
    | `scale_backoffs` | how often the scale was lowered, in total |
    | `good_steps` | finite steps in a row since the scale last moved |

    After an epoch in which something happened, one line says what. It is logged as a warning only
    when more than half of the steps were lost for a reason that does not pass by itself.

    The forward pass of a step that is then skipped has already written normalisation statistics,
    random states and the running loss. This callback registers them with `optimizer.protect`, so
    that the step leaves no trace. In an epoch without any applied step the loss is NaN. Compiled
    metrics are updated after the step and do see its batch.

    Where several ranks take their steps together, rank 0 prints and writes for all of them, since
    all see the same events; each event says which rank overflowed. The keys are in everyone's logs.

    Args:
        log_freq: `"epoch"`, or an integer to fetch events every so many batches as well, so that
            the file is up to date. Each fetch waits for the device.
        jsonl: path of a file to which each event is appended as a JSON object on a line of its
            own: the fields of `npu_keras.Event`, `epoch` (from 0) and `wall_time` (seconds since
            1970, when the event was fetched). If it cannot be written, training goes on.
        log_dir: TensorBoard's folder, where the run `loss_scale` gets the scalars `loss_scale` (of
            the next step), `skipped_steps` (in total) and `overflow` (1 where a step was skipped,
            0 where the scale grew). Each event stands at its own attempted step, and so does the
            last step before a fetch. If it cannot be written, training goes on.
        prefix: put before each key and each tag.
        verbose: 1 prints the lines, 0 does not.

    Raises:
        TypeError: for a path, prefix or number that is none.
        ValueError: for another `log_freq`; at the begin of training, if the model's optimizer does
            not scale the loss by this package.

    Example:

    ```python
    optimizer = npu_keras.NPUOptimizer(keras.optimizers.Adam(1e-3), manager, is_loss_scale=True)
    model.compile(optimizer, loss="mse")
    logger = npu_keras.callbacks.LossScaleLogger(jsonl="events.jsonl")
    model.fit(x, y, epochs=5, callbacks=[logger, keras.callbacks.CSVLogger("history.csv")])
    ```
    """

    def __init__(
        self,
        log_freq: int | str = "epoch",
        jsonl: str | Path | None = None,
        prefix: str = "",
        verbose: int = 1,
        log_dir: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.log_freq = log_freq
        self.prefix = _of_type("prefix", prefix, str)
        self.verbose = _of_type("verbose", verbose, int)
        self._fetch_every = _fetch_interval(log_freq)
        self._file = None if jsonl is None else EventLog(path("jsonl", jsonl))
        self._scalars = None if log_dir is None else ScalarLog(path("log_dir", log_dir), prefix)
        self._records: list[tuple[int, Event]] = []

    _optimizer: Any
    _reader: JournalReader | None
    _line: wording.Report | None
    _speaks: bool
    _before: Snapshot
    _fetched: Snapshot
    _events: list[Event]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Finds the loss-scaled optimizer, and warns of others that scale nothing."""
        self._optimizer = require_loss_scaled(self.model, type(self).__name__)
        unscaled_optimizers(self.model)
        self._reader = None
        self._line = None
        self._records = []
        self._speaks = speaks_for_all(self._optimizer)
        if self._file is not None and self._speaks:
            self._file.open()
        if self._scalars is not None and self._speaks:
            self._scalars.open()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts to count, and protects what the forward pass writes."""
        self._say()
        reader = self._started_reader()
        self._epoch, self._steps_seen, self._steps_unread = epoch, 0, 0
        self._events = []
        self._lost_before = reader.lost
        protect_forward_state(self.model)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Fetches events before the optimizer overwrites them; nothing in most batches."""
        block = batch + 1 - self._steps_seen  # several with `steps_per_execution`
        self._steps_seen = batch + 1
        self._steps_unread += block
        full = self._steps_unread + block > RING_ROWS  # at most one event a step
        if full or self._steps_unread >= self._fetch_every:
            self._fetch()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the keys to the logs."""
        self._fetch()
        reader = self._started_reader()
        now = self._optimizer.journal.snapshot()
        lost = reader.lost - self._lost_before
        span = wording.Span(self._before, now, self._events, lost)
        self._line = wording.describe(epoch, span, self._optimizer.loss_scale_manager)
        self._before = now
        if logs is not None:
            logs.update({self.prefix + key: value for key, value in _values(span).items()})
            correct_loss(logs, span.before, span.after)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Says what there is still to say."""
        self._say()
        if self._scalars is not None:
            self._scalars.close()

    def to_records(self) -> list[dict[str, Any]]:
        """Returns the events of the last training, oldest first.

        Returns:
            One dict per event: the fields of `npu_keras.Event`, and `epoch` (from 0). What
            `pandas.DataFrame` takes.
        """
        return [{**event._asdict(), "epoch": epoch} for epoch, event in self._records]

    def _started_reader(self) -> JournalReader:
        # Not in `on_train_begin`, where `BackupAndRestore` brings back the events of earlier runs.
        if self._reader is None:
            self._reader = self._optimizer.journal.reader()
            self._before = self._fetched = self._optimizer.journal.snapshot()
            self._forecast()
        return self._reader

    def _forecast(self) -> None:
        unsettled = self._before.attempted_steps == self._before.skipped_steps
        if unsettled and "float16" in compute_dtypes(self.model):
            manager = self._optimizer.loss_scale_manager
            self._print(wording.forecast(manager, self._before.loss_scale))

    def _fetch(self) -> None:
        self._steps_unread = 0
        events = self._started_reader().drain()
        self._events += events
        self._records += [(self._epoch, event) for event in events]
        if self._file is not None and self._speaks and events:
            self._file.append(events, self._epoch)
        if self._scalars is not None and self._speaks:
            before, self._fetched = self._fetched, self._optimizer.journal.snapshot()
            self._scalars.append(before, events, self._fetched)

    def _say(self) -> None:
        # One epoch late, when the progress bar's line is complete.
        line, self._line = self._line, None
        if line is not None and line.needs_action and self._speaks:
            _logger.warning(line.text)
        elif line is not None:
            self._print(line.text)

    def _print(self, text: str | None) -> None:
        if not text or not self.verbose or not self._speaks:
            return
        if keras.config.is_interactive_logging_enabled():
            print(text, flush=True)
        else:
            _logger.info(text)


def _fetch_interval(log_freq: int | str) -> float:
    if log_freq == "epoch":
        return math.inf
    if isinstance(log_freq, int) and not isinstance(log_freq, bool) and log_freq >= 1:
        return log_freq
    raise ValueError(
        f'`log_freq` must be "epoch" or a number of batches of at least 1. Received: {log_freq=}'
    )


def _of_type(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be of type {kind.__name__}. Received: {name}={value!r}")
    return value


def _values(span: wording.Span) -> dict[str, float]:
    after = span.after
    return {
        "loss_scale": float(after.loss_scale),
        "skipped_steps": float(after.skipped_steps),
        "overflow_rate": float(span.overflow_rate),
        "scale_growths": float(after.scale_growths),
        "scale_backoffs": float(after.scale_backoffs),
        "good_steps": float(after.good_steps),
    }
