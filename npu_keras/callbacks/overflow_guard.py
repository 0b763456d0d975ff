# SPDX-License-Identifier: Apache-2.0
"""Ends a training that has gone wrong, and lets harmless overflows be."""

import logging
import math
from typing import Any

import numpy as np

from npu_keras.callbacks.base import Callback
from npu_keras.callbacks.forward_state import correct_loss, protect_forward_state
from npu_keras.callbacks.host_model import internals
from npu_keras.callbacks.scaled import peers, require_loss_scaled, speaks_for_all
from npu_keras.callbacks.symptoms import (
    FLOOR,
    FORWARD,
    FORWARD_AGAIN,
    NAMES_SHOWN,
    Limits,
    Watch,
)
from npu_keras.journal import JournalReader, Snapshot, read
from npu_keras.words import scale_text

ACTIONS = ("warn", "stop", "raise")
READ_EVERY = 10
"""Batches between two looks at the journal, each of which waits for the device."""

APPLIED = "not finite after applied steps"

_logger = logging.getLogger("npu_keras")


class OverflowGuard(Callback):
    """Notices what does not get better by itself: warns, stops or raises.

    | what is noticed | what happens |
    | --- | --- |
    | the scale is at its floor, and overflows that would have lowered it go on | `on_floor` |
    | more than `max_consecutive_skips` steps in a row are skipped | `action` |
    | more than `max_overflow_rate` of the last `window` steps are skipped | `action` |
    | the loss itself is not finite in three steps in a row | `action`; the first time a warning |
    | the loss or a weight is not finite after applied steps | `action` |

    The last one is `keras.callbacks.TerminateOnNaN` for loss scaling: it overlooks the losses of
    skipped steps, which it takes out of the running loss as `LossScaleLogger` does. Each cause is
    named once in a training: step, loss scale, the first variables that overflowed, what to try.

    The journal is read every 10 batches, or after each execution of more steps, so that it acts at
    most so many late; whatever `steps_per_execution`, the steps themselves are all seen. Ranks that
    take their steps together have the same journal and so decide alike, without a message; rank 0
    speaks. Only the loss is each rank's own, and is compared at the end of an epoch.

    It adds no key to the logs.

    Args:
        max_consecutive_skips: most skipped steps in a row, at least 1; None for any number.
        max_overflow_rate: largest share of skipped steps in the window, from 0 to below 1; None for
            any share. Not judged before `window` steps.
        window: steps, at least 1.
        on_floor: `"warn"`, `"stop"` or `"raise"`.
        action: the same, for everything else. `"warn"` logs a warning, `"stop"` also ends the
            training, `"raise"` raises `OverflowError` with the same text.

    Raises:
        ValueError: for other arguments; at the begin of training, if the model's optimizer
            is none of this package.
        OverflowError: on all ranks, if `"raise"` was asked for.

    Example:

    ```python
    guard = npu_keras.callbacks.OverflowGuard(max_consecutive_skips=50, action="stop")
    model.fit(dataset, callbacks=[npu_keras.callbacks.LossScaleLogger(), guard])
    ```
    """

    def __init__(
        self,
        max_consecutive_skips: int | None = None,
        max_overflow_rate: float | None = None,
        window: int = 200,
        on_floor: str = "warn",
        action: str = "warn",
    ) -> None:
        super().__init__()
        if max_consecutive_skips is not None:
            _require_count("max_consecutive_skips", max_consecutive_skips)
        _require_count("window", window)
        _require_rate(max_overflow_rate)
        _require_action("on_floor", on_floor)
        _require_action("action", action)
        self.max_consecutive_skips = max_consecutive_skips
        self.max_overflow_rate = max_overflow_rate
        self.window = window
        self.on_floor = on_floor
        self.action = action

    _optimizer: Any
    _reader: JournalReader | None
    _watch: Watch
    _named: set[str]
    _loss: Any
    _before: Snapshot

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Finds the loss-scaled optimizer."""
        self._optimizer = require_loss_scaled(self.model, type(self).__name__)
        self._reader = None
        self._named = set()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts to watch, and protects what the forward pass writes."""
        self._begin_once()
        self._seen, self._unread, self._loss = 0, 0, 0.0
        self._forward_in_epoch = False
        self._before = self._optimizer.journal.snapshot()
        protect_forward_state(self.model)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks at the journal; in most batches nothing."""
        self._unread += batch + 1 - self._seen  # several with `steps_per_execution`
        self._seen = batch + 1
        self._loss = (logs or {}).get("loss", 0.0)
        if self._unread >= READ_EVERY:
            self._look()
            if peers(self._optimizer) is None:
                self._judge_loss(_is_finite(self._loss) or self._loss_of_skipped())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks at the journal, at the loss and at the weights."""
        self._look()
        finite = _is_finite(self._loss) or self._loss_of_skipped()
        engine = peers(self._optimizer)
        if engine is not None:
            finite = all(engine.exchange(finite, "finite losses"))
        self._judge_loss(finite and not _bad_weights(self._optimizer))
        correct_loss(logs, self._before, self._optimizer.journal.snapshot())

    def _begin_once(self) -> None:
        # Not in `on_train_begin`, where `BackupAndRestore` brings back the events of earlier runs.
        if self._reader is not None:
            return
        manager, journal = self._optimizer.loss_scale_manager, self._optimizer.journal
        limits = Limits(
            self.max_consecutive_skips,
            self.max_overflow_rate,
            self.window,
            manager.min_loss_scale,
            getattr(manager, "decr_every_n_nan_or_inf", 1),
        )
        self._reader = journal.reader()
        self._watch = Watch(limits, journal.snapshot().attempted_steps)

    def _look(self) -> None:
        self._unread = 0
        assert self._reader is not None
        for event in self._reader.drain():
            self._forward_in_epoch |= event.forward
            for symptom in self._watch.see(event):
                self._treat(*symptom)

    def _treat(self, kind: str, text: str) -> None:
        if kind == FORWARD_AGAIN:
            bad = _bad_weights(self._optimizer)
            names = ", ".join(bad[:NAMES_SHOWN])
            text += f" Weights that are not finite themselves: {names or 'none'}."
        actions = {FORWARD: "warn", FLOOR: self.on_floor}
        self._act(kind, actions.get(kind, self.action), text)

    def _loss_of_skipped(self) -> bool:
        """Whether a loss that is not finite may be that of a skipped step."""
        return self._forward_in_epoch and internals(self.model).has_own_train_step(self.model)

    def _judge_loss(self, finite: bool) -> None:
        if finite or APPLIED in self._named:
            return
        now, bad = self._optimizer.journal.snapshot(), _bad_weights(self._optimizer)
        what = "weights are" if bad else "the loss is"
        where = f" First of them: {', '.join(bad[:NAMES_SHOWN])}." if bad else ""
        text = (
            f"Step {now.attempted_steps}, loss scale {scale_text(now.loss_scale)}: {what} not "
            f"finite although the steps were applied.{where} What to try: go back to an earlier "
            "checkpoint with a lower learning rate, clip the gradients (global_clipnorm=1.0 on the "
            "inner optimizer), or look at the loss function for log(0) and 0/0."
        )
        self._act(APPLIED, self.action, text)

    def _act(self, kind: str, action: str, text: str) -> None:
        if kind in self._named:
            return
        self._named.add(kind)
        if action == "raise":
            raise OverflowError(text)
        if speaks_for_all(self._optimizer):
            _logger.warning("OverflowGuard: %s", text)
        if action == "stop":
            self.model.stop_training = True


def _is_finite(loss: Any) -> bool:
    return math.isfinite(float(loss))


def _bad_weights(optimizer: Any) -> list[str]:
    """Names of the trained variables with an infinity or a NaN; the same on all ranks."""
    pairs = zip(optimizer._variable_paths(), optimizer._trained_variables(), strict=True)
    return [path for path, v in pairs if not np.isfinite(read(v)).all()]


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1. Received: {name}={value}")


def _require_rate(rate: Any) -> None:
    if rate is None:
        return
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(
            "`max_overflow_rate` must be a share of at least 0 and below 1, or None. "
            f"Received: max_overflow_rate={rate!r}"
        )


def _require_action(name: str, action: Any) -> None:
    if action not in ACTIONS:
        raise ValueError(f"`{name}` must be one of {ACTIONS}. Received: {name}={action!r}")
