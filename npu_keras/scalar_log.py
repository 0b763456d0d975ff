# SPDX-License-Identifier: Apache-2.0
"""The loss scale in TensorBoard: points at the steps at which something happened."""

import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from npu_keras.journal import Event, Snapshot

RUN = "loss_scale"
"""The run's folder: Keras' own callback writes to `train` and `validation` beside it."""

_logger = logging.getLogger("npu_keras")


class ScalarLog:
    """Writes scalars for TensorBoard; a folder that cannot be written is reported once.

    The file holds what `tf.summary.scalar` would write. That function takes one or two milliseconds
    a point (TensorFlow 2.21.0), and exists only where TensorBoard is installed.

    Args:
        log_dir: TensorBoard's folder; the run in it is called `loss_scale`.
        prefix: put before each tag.
    """

    def __init__(self, log_dir: str | Path, prefix: str = "") -> None:
        self.path = Path(log_dir) / RUN
        self._prefix = prefix
        self._writer: tf.io.TFRecordWriter | None = None

    def open(self) -> None:
        """Begins a file of its own for this training."""
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
        tf.io.gfile.makedirs(str(self.path))
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010}.{platform.node()}.{os.getpid()}.{rest}"
        self._writer = tf.io.TFRecordWriter(str(self.path / name))
        self._record(tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, before: Snapshot, events: Sequence[Event], after: Snapshot) -> None:
        if self._writer is None:
            return
        # Events that were overwritten before they were read came first.
        skipped = after.skipped_steps - sum(event.skipped for event in events)
        if before.attempted_steps == 0:
            self._points(0, loss_scale=before.loss_scale, skipped_steps=before.skipped_steps)
        for event in events:
            skipped += event.skipped
            scale, overflow = event.scale_after, event.skipped
            self._points(event.attempt, loss_scale=scale, skipped_steps=skipped, overflow=overflow)
        last = after.attempted_steps
        if not events or events[-1].attempt < last:
            self._points(last, loss_scale=after.loss_scale, skipped_steps=after.skipped_steps)
        self._writer.flush()

    def _points(self, step: int, **values: float) -> None:
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            point = summary.value.add(tag=self._prefix + tag)
            point.tensor.dtype = tf.float32.as_datatype_enum
            point.tensor.float_val.append(value)
            point.metadata.plugin_data.plugin_name = "scalars"
            point.metadata.data_class = 1  # DATA_CLASS_SCALAR
        self._record(tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary))

    def _record(self, event: tf.compat.v1.Event) -> None:
        assert self._writer is not None
        self._writer.write(event.SerializeToString())

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (OSError, tf.errors.OpError) as error:
            self._writer = None
            reason = getattr(error, "message", None) or getattr(error, "strerror", None)
            _logger.warning(
                "TensorBoard's scalars cannot be written to %s (%s). Training goes on without.",
                self.path,
                reason or error,
            )
