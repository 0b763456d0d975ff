# SPDX-License-Identifier: Apache-2.0
"""The loss scale in TensorBoard: points at the steps at which something happened."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from npu_keras.journal import Event, Snapshot

RUN = "loss_scale"
"""The run's folder: Keras' own callback writes to `train` and `validation` beside it."""

_logger = logging.getLogger("npu_keras")


class ScalarLog:
    """Writes scalars for TensorBoard; a folder that cannot be written is reported once.

    Only TensorFlow is needed, TensorBoard itself to look at them.

    Args:
        log_dir: TensorBoard's folder; the run in it is called `loss_scale`.
        prefix: put before each tag.
    """

    def __init__(self, log_dir: str | Path, prefix: str = "") -> None:
        self.path = Path(log_dir) / RUN
        self._prefix = prefix
        self._writer: tf.summary.SummaryWriter | None = None
        self._failed = False

    def open(self) -> None:
        """Begins a file of its own for this training."""
        self._failed = False
        self._attempt(self._create)

    def append(self, before: Snapshot, events: Sequence[Event], after: Snapshot) -> None:
        """Writes one point per event, and one for the last step.

        Args:
            before: the counters before the events.
            events: what happened, oldest first.
            after: the counters after them.
        """
        if events or before.attempted_steps < after.attempted_steps:
            self._attempt(lambda: self._write(before, events, after))

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._attempt(self._writer.close)
            self._writer = None

    def _create(self) -> None:
        self._writer = tf.summary.create_file_writer(str(self.path))

    def _write(self, before: Snapshot, events: Sequence[Event], after: Snapshot) -> None:
        assert self._writer is not None
        # Events that were overwritten before they were read came first.
        skipped = after.skipped_steps - sum(event.skipped for event in events)
        with self._writer.as_default():
            if before.attempted_steps == 0:
                self._points(0, before.loss_scale, before.skipped_steps)
            for event in events:
                skipped += event.skipped
                self._points(event.attempt, event.scale_after, skipped)
                self._point("overflow", event.skipped, event.attempt)
            if not events or events[-1].attempt < after.attempted_steps:
                self._points(after.attempted_steps, after.loss_scale, after.skipped_steps)
        self._writer.flush()

    def _points(self, step: int, loss_scale: float, skipped_steps: int) -> None:
        self._point("loss_scale", loss_scale, step)
        self._point("skipped_steps", skipped_steps, step)

    def _point(self, tag: str, value: float, step: int) -> None:
        tf.summary.write(
            self._prefix + tag, tf.constant(float(value)), step=step, metadata=_scalar_metadata()
        )

    def _attempt(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            with tf.init_scope():
                action()
        except (OSError, tf.errors.OpError) as error:
            self._failed = True
            _logger.warning(
                "TensorBoard's scalars cannot be written to %s (%s). Training goes on without.",
                self.path,
                getattr(error, "message", None) or getattr(error, "strerror", None) or error,
            )


def _scalar_metadata() -> tf.compat.v1.SummaryMetadata:
    # What `tf.summary.scalar` writes, which exists only where TensorBoard is installed.
    metadata = tf.compat.v1.SummaryMetadata(data_class=1)
    metadata.plugin_data.plugin_name = "scalars"
    return metadata
