# SPDX-License-Identifier: Apache-2.0
"""Which collectives are under way, told by the graph as it runs, watched from a thread."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from npu_keras import _upstream
from npu_keras.engines.base import EngineTimeout
from npu_keras.engines.peers import Peers

_LOG = logging.getLogger("npu_keras")


class Tally:
    """Collectives made of TensorFlow ops, watched for ranks that are missing.

    TensorFlow knows when a collective has failed or has lasted too long, but not why. Here each
    is noted at its start and its end; a thread looks at those that wait, and aborts them with
    the reason when waiting is of no use any more.

    Args:
        peers: what is known of the other ranks.
        abort: ends all collectives of this process with a message.
    """

    def __init__(self, peers: Peers, abort: Callable[[str], None]) -> None:
        self._peers = peers
        self._abort = abort
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[str, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="npu_keras-tally", daemon=True)
        self._thread.start()

    def begin(self, label: str) -> int:
        """Notes the start of a collective; returns its number."""
        # TensorFlow fails at once when it cannot connect, and does not say to which rank.
        self._peers.raise_if_lost(label)
        self._peers.count += 1
        number = next(self._numbers)
        self._waiting[number] = (label, time.monotonic())
        return number

    def end(self, number: int) -> None:
        """Notes the end of a collective."""
        self._waiting.pop(int(number), None)

    def eagerly(self, label: str, body: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
        """Runs `body`, a collective; translates the errors of TensorFlow.

        Raises:
            EngineTimeout: if the collective fails.
        """
        number = self.begin(label)
        try:
            return body()
        except tf.errors.OpError as error:
            raise EngineTimeout(self._peers.explain(label, error.message)) from error
        finally:
            self.end(number)

    def in_graph(
        self,
        label: str,
        after: Sequence[Any],
        body: Callable[[], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Traces `body`, a collective that runs once the tensors and ops in `after` are there."""
        with tf.control_dependencies(list(after)):
            number = tf.numpy_function(lambda: np.int64(self.begin(label)), [], tf.int64)
        with tf.control_dependencies([number]):
            outputs = body()
        with tf.control_dependencies(outputs):
            end = tf.numpy_function(self.end, [number], [])
        for op in (number.op, end):
            _upstream.run_independently(op)
        return outputs

    def stop(self) -> None:
        """Ends the thread; logs who is to blame for a collective that never ended."""
        self._stop.set()
        self._thread.join()
        if self._waiting and self._peers.failure is None:
            label, _ = next(iter(self._waiting.values()))
            _LOG.error("%s", self._peers.explain(label, "it did not end."))

    def _watch(self) -> None:
        while not self._stop.wait(min(0.2, self._peers.timeout_s / 20)):
            for label, since in list(self._waiting.values()):
                try:
                    self._peers.check(label, since)
                except EngineTimeout as error:
                    _LOG.error("%s", error)
                    self._abort(str(error))
                    return
