# SPDX-License-Identifier: Apache-2.0
"""The engine for processes listed in `TF_CONFIG`: TensorFlow's own collective runtime."""

import atexit
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from npu_keras import _upstream, cluster
from npu_keras.engines import collective_ops, lane_order
from npu_keras.engines.base import (
    DEFAULT_TIMEOUT_S,
    MEBIBYTE,
    EngineError,
    EngineTimeout,
    Reduction,
    check_reduction,
    check_root,
)
from npu_keras.engines.packing import pack, unpack
from npu_keras.engines.peers import Peers
from npu_keras.engines.tally import Tally

_START_LANE = 0
_ADDRESS_BYTES = 2048
_SLACK_S = 10.0  # TensorFlow gives up later than we do, as it cannot say for whom it waits


class CollectiveEngine:
    """One process per device listed in `TF_CONFIG`, without any `tf.distribute` scope.

    Each bucket is packed into one vector and reduced by a ring over gRPC, on CPU: a collective
    takes some milliseconds however small it is. 16-bit floats are reduced as such, with a
    rounding at every rank.

    It must be made before TensorFlow makes its first tensor, because it changes the devices.
    Every process listens on its own address in `TF_CONFIG`, and rank 0 on one more port.

    Args:
        timeout_s: float, the longest wait for another rank, in seconds.

    Raises:
        EngineError: if `TF_CONFIG` lists no other worker, or TensorFlow is already in use.
        EngineTimeout: if a rank does not start.
    """

    name = "collective"
    bucket_bytes = 32 * MEBIBYTE
    capabilities = frozenset({"async"})

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        place = cluster.find()
        if len(place.workers) < 2:
            raise EngineError(
                "The collective engine needs the addresses of several workers in TF_CONFIG. "
                f"Received: {place}. Set TF_CONFIG, or start with `python -m npu_keras run`."
            )
        if _upstream.runtime_has_started():
            raise EngineError(
                "The collective engine must be made before TensorFlow makes its first tensor. "
                "Call `npu_keras.engines.find()` at the top of the script, before any model, "
                "tensor or dataset."
            )
        self.rank, self.size, self.timeout_s = place.rank, place.size, timeout_s
        _upstream.start_collectives(place.workers, place.rank)
        hosts = [place.workers[0].rpartition(":")[0].strip("[]")]
        self._left = False
        self._peers = Peers(self.rank, self.size, timeout_s, self._share, hosts)
        self._tally = Tally(self._peers, _upstream.abort_collectives)
        atexit.register(self.shutdown)

    @tf.autograph.experimental.do_not_convert
    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, reduction: Reduction, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Reduces each tensor over the ranks, elementwise; see `Engine.all_reduce`."""
        check_reduction(reduction)
        if not tensors:
            return []
        dtype = tensors[0].dtype
        wire = collective_ops.wire_dtype(dtype)
        channel = self._channel(lane)

        def body() -> list[tf.Tensor]:
            flat = tf.cast(pack(tensors), wire)
            return unpack(tf.cast(channel.reduce(flat, reduction), dtype), tensors)

        return self._run(body, tensors, lane, f"all_reduce of {label}")

    @tf.autograph.experimental.do_not_convert
    def all_gather(self, tensor: tf.Tensor, *, lane: int, label: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks along axis 0; see `Engine.all_gather`."""
        channel = self._channel(lane)

        def body() -> list[tf.Tensor]:
            return [collective_ops.all_gather(channel, tensor)]

        output = self._run(body, [tensor], lane, f"all_gather of {label}")[0]
        if not tf.executing_eagerly():
            output.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
        return output

    @tf.autograph.experimental.do_not_convert
    def broadcast(
        self, tensors: Sequence[tf.Tensor], *, root_rank: int = 0, lane: int, label: str
    ) -> list[tf.Tensor]:
        """Gives every rank the tensors of `root_rank`; see `Engine.broadcast`."""
        check_root(root_rank, self.size)
        if not tensors:
            return []
        channel = self._channel(lane)

        def body() -> list[tf.Tensor]:
            words = [collective_ops.to_words(tensor) for tensor in tensors]
            sent = channel.broadcast(tf.concat(words, 0), root_rank, self.rank)
            return [
                collective_ops.from_words(part, tf.shape(tensor), tensor.dtype)
                for part, tensor in zip(unpack(sent, words), tensors, strict=True)
            ]

        outputs = self._run(body, tensors, lane, f"broadcast of {label}")
        return _with_shapes(outputs, tensors)

    def barrier(self, label: str) -> None:
        """Waits until every rank is here."""
        self._peers.exchange(None, f"barrier {label}")

    def exchange(self, value: Any, label: str = "exchange") -> list[Any]:
        """Gives every rank the values of all ranks; see `Engine.exchange`."""
        return self._peers.exchange(value, label)

    def shutdown(self) -> None:
        """Leaves and waits for the others to leave; TensorFlow serves them until then."""
        if not self._left:
            self._left = True
            self._tally.stop()
            self._peers.leave(self.timeout_s)

    def _channel(self, lane: int) -> collective_ops.Channel:
        return collective_ops.Channel(self.size, lane, self.timeout_s + _SLACK_S)

    def _run(
        self,
        body: Callable[[], list[tf.Tensor]],
        inputs: Sequence[tf.Tensor],
        lane: int,
        what: str,
    ) -> list[tf.Tensor]:
        if self._left:
            raise EngineError(f"The collective engine has been shut down. Received: {what}.")
        label = f"{what} (lane {lane})"
        with tf.device("CPU:0"):
            if tf.executing_eagerly():
                return self._tally.eagerly(label, body)
            key = f"lane {lane}"
            with tf.name_scope(_as_name(label)):
                after = [*inputs, *lane_order.previous(key)]
                outputs = self._tally.in_graph(label, after, body)
            lane_order.remember(key, outputs[0].op)
            return outputs

    def _share(self, text: str) -> str:
        """Broadcasts the text of rank 0, the first collective of all."""
        data = tf.constant(list(text.encode().ljust(_ADDRESS_BYTES)), tf.int32)
        try:
            with tf.device("CPU:0"):
                channel = collective_ops.Channel(self.size, _START_LANE, self.timeout_s)
                data = channel.broadcast(data, 0, self.rank)
        except tf.errors.OpError as error:
            self._refuse_other_sizes(error.message)
            absent = [r for r in range(self.size) if not _upstream.answers(r, 2.0)]
            raise EngineTimeout(
                f"Rank {absent or 'unknown'} did not start the engine within "
                f"{self.timeout_s:g} s. TensorFlow says: {error.message}"
            ) from error
        return bytes(data.numpy().tolist()).decode().strip()

    def _refuse_other_sizes(self, message: str) -> None:
        # The words of TensorFlow 2.21.0; with others the message says it in its own way.
        found = re.search(
            r"joining a group with size ?(\d+), but that group has size (\d+)", message
        )
        sizes = {int(size) for size in found.groups()} if found else {self.size}
        for other in sizes - {self.size}:
            raise EngineError(
                "Every rank needs the same workers in TF_CONFIG, in the same order. Received: "
                f"{self.size} workers on rank {self.rank}, {other} workers on another rank."
            )


def _with_shapes(outputs: list[tf.Tensor], inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    if not tf.executing_eagerly():
        for output, tensor in zip(outputs, inputs, strict=True):
            output.set_shape(tensor.shape)
    return outputs


def _as_name(label: str) -> str:
    """A name for ops, which TensorFlow shows in its error messages."""
    return re.sub(r"[^A-Za-z0-9_.\-/]+", "_", label).strip("_.-/")[:200]
