# SPDX-License-Identifier: Apache-2.0
"""Ranks under a `tf.compat.v1.train` optimizer: eagerly, in a `tf.function`, and in a graph.

In a graph nothing can be broadcast before the session runs, so there the script does it, and the
first step finds out whether it has.
"""

import copy
import hashlib
import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from npu_keras.aggregating import Aggregating, DecidingTogether
from npu_keras.aggregation import GradientAggregation
from npu_keras.channels import Channel
from npu_keras.engines import Engine
from npu_keras.mixins import StepMixin
from npu_keras.sparse import Gradient, map_values
from npu_keras.startup import take_lanes

_ADVICE = (
    "The ranks start from different weights. Run `npu_keras.v1.broadcast_global_variables(0)` "
    "after the initializer, or give the session "
    "`hooks=[npu_keras.v1.BroadcastGlobalVariablesHook(0)]`. To train them apart on purpose pass "
    "`aggregation=GradientAggregation(broadcast_initial=False)`."
)


class V1Ranks(StepMixin):
    """The channels by which a `tf.compat.v1.train` optimizer reaches its peers."""

    _reducing: dict[Any, Channel]
    _guard: Callable[[Sequence[Any]], tf.Tensor] | None = None

    def _has_ranks(self) -> bool:
        return self._aggregation is not None and self._aggregation.engine().size > 1

    def _deciding_channel(self) -> Channel:
        """The channel of the common decision, ready for use."""
        if tf.distribute.has_strategy():
            # It would sum over replicas inside a conditional, which TensorFlow 2.21.0 refuses.
            raise ValueError(
                f"{type(self).__name__} does not work under a `tf.distribute` strategy. Leave out "
                "the strategy and start a process for each device (`python -m npu_keras run -n 2 "
                "script.py`) with `is_distributed=True`, or use the class of the same name in "
                "`npu_keras` with a Keras 3 optimizer. "
                f"Received: {tf.distribute.get_strategy()!r}"
            )
        channel = self._current_channel()
        channel.prepare(self._trained_variables(), self._own_variables(), self._scaling.describe)
        return channel

    def _reducing_channel(self, positions: Sequence[int]) -> Channel:
        """The channel for gradients of these variables; those of others go by one of their own."""
        first = self._deciding_channel()
        if not isinstance(first, Aggregating):
            return first
        known = self.__dict__.setdefault("_reducing", {frozenset(positions): first})
        key = frozenset(positions)
        if key not in known:
            known[key] = Aggregating(
                _without_broadcast(first.aggregation), first.engine, self._trained_variables()
            )
            known[key].prepare(self._trained_variables(), [], self._scaling.describe)
        return known[key]

    def _make_channel(self, aggregated: bool) -> Channel:
        channel = super()._make_channel(aggregated)
        if not isinstance(channel, DecidingTogether) or _eager_outside():
            return channel
        _require_session_engine(channel.engine)
        _warn_of_many()
        if isinstance(channel, Aggregating) and channel.aggregation.broadcast_initial:
            channel.aggregation = _without_broadcast(channel.aggregation)
            self._guard = _make_guard(channel.engine)
        return channel

    def _guarded(self, gradients: list[Gradient]) -> list[Gradient]:
        """Returns gradients that exist only if all ranks had the same weights at first."""
        if self._guard is None:
            return gradients
        with tf.control_dependencies([self._guard(self._trained_variables())]):
            return [map_values(tf.identity, gradient) for gradient in gradients]


def _warn_of_many() -> None:
    # Each of them may hold a thread that waits for the others; those of two ranks may differ.
    among = tf.compat.v1.get_default_graph().get_collection_ref("npu_keras/optimizers with ranks")
    among.append(len(among) + 1)
    cpus = len(os.sched_getaffinity(0))
    if len(among) == cpus + 1:
        warnings.warn(
            f"This graph has more optimizers that wait for other ranks than there are CPUs ({cpus}"
            "). A session that runs them at once needs more threads than there are of them, or it "
            "can stand still: `tf.compat.v1.ConfigProto(inter_op_parallelism_threads=...)`.",
            stacklevel=9,
        )


def _make_guard(engine: Engine) -> Callable[[Sequence[Any]], tf.Tensor]:
    """Returns a function that makes an op; its first run compares weights between the ranks."""
    lane = take_lanes(engine, 1)
    runs = itertools.count()

    def compare(variables: Sequence[Any]) -> tf.Tensor:
        weights = [tf.convert_to_tensor(variable) for variable in variables]
        digest = tf.numpy_function(_digest, weights, tf.int64)
        mine = tf.one_hot(engine.rank, engine.size, dtype=tf.int64) * digest
        (everyone,) = engine.all_reduce([mine], reduction="sum", lane=lane, label="first weights")
        return tf.numpy_function(_require_equal, [everyone], tf.bool)

    def guard(variables: Sequence[Any]) -> tf.Tensor:
        first = tf.numpy_function(lambda: next(runs) == 0, [], tf.bool)
        first.set_shape(())
        return tf.cond(first, lambda: compare(variables), lambda: tf.constant(True))

    return guard


def _digest(*weights: Any) -> np.int64:
    sha = hashlib.sha256()
    for weight in weights:
        sha.update(np.ascontiguousarray(weight).tobytes())
    return np.frombuffer(sha.digest()[:8], np.int64)[0]


def _require_equal(digests: Any) -> np.bool_:
    if len(set(digests.tolist())) > 1:
        raise RuntimeError(_ADVICE)
    return np.bool_(True)


def _without_broadcast(aggregation: GradientAggregation) -> GradientAggregation:
    other = copy.copy(aggregation)
    other.broadcast_initial = False
    return other


def _eager_outside() -> bool:
    with tf.init_scope():
        return tf.executing_eagerly()


def _require_session_engine(engine: Engine) -> None:
    if engine.name == "collective":
        raise RuntimeError(
            "The 'collective' engine works eagerly and in a `tf.function`, but not in a "
            "`tf.compat.v1.Session`. Start the ranks by `python -m npu_keras run --engine mpi`, "
            "or put the step in a `tf.function`."
        )
