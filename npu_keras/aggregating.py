# SPDX-License-Identifier: Apache-2.0
"""The channels of several ranks: those that decide together, and those that aggregate."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from npu_keras._upstream import in_xla
from npu_keras.aggregation import GradientAggregation, Kinds, agreed_kinds, kind_of
from npu_keras.buckets import Plan
from npu_keras.channels import Alone, GradientList, Settings
from npu_keras.engines import Engine
from npu_keras.sparse import Gradient, added, deduplicated, map_values
from npu_keras.startup import (
    require_equal_weights,
    require_same_everywhere,
    take_lanes,
    variable_name,
)


class DecidingTogether(Alone):
    """Ranks that decide together and leave the gradients to somebody else.

    Args:
        engine: how the decision travels.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.size = engine.size
        self._first_lane = -1

    def rank_tensor(self) -> tf.Tensor:
        """Returns the own rank."""
        return tf.constant(self.engine.rank, tf.int64)

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns the elementwise sum over all ranks."""
        self._refuse_xla()
        (common,) = self.engine.all_reduce(
            [vector], reduction="sum", lane=self._first_lane, label="overflow decision"
        )
        return common

    def prepare(self, trained: Sequence[Any], others: Sequence[Any], settings: Settings) -> None:
        """Compares the variables and settings of all ranks; see `Aggregating.prepare`."""
        if self._first_lane < 0:
            require_same_everywhere(self.engine, trained, settings())
            self._first_lane = take_lanes(self.engine, 1)

    def _refuse_xla(self) -> None:
        if in_xla() and "xla" not in self.engine.capabilities:
            raise RuntimeError(
                f"The {self.engine.name!r} engine sends gradients from outside of XLA, so the "
                "training step cannot be compiled. Pass `jit_compile=False` to `model.compile` "
                "(or to your `tf.function`)."
            )


class Aggregating(DecidingTogether):
    """Ranks whose gradients become one.

    Args:
        aggregation: the settings.
        engine: how tensors travel.
        variables: the trained variables, in order.
    """

    def __init__(
        self, aggregation: GradientAggregation, engine: Engine, variables: Sequence[Any]
    ) -> None:
        super().__init__(engine)
        self.aggregation = aggregation
        self._variables = list(variables)
        self._first_bucket = -1
        self._kinds: Kinds | None = None
        self.divisor = self.size if aggregation.reduction == "mean" else 1
        self.may_overflow = self.divisor == 1 or self._rounds_up()

    def _rounds_up(self) -> bool:
        # 65504 / 3 rounds up in float16, and three times that is beyond 65504.
        dtypes = {tf.as_dtype(variable.dtype) for variable in self._variables}
        narrow = self.aggregation.wire_dtype == tf.float16 or tf.float16 in dtypes
        return narrow and self.size & (self.size - 1) != 0

    def outgoing(self, own: GradientList) -> GradientList:
        """Returns the gradients all ranks have agreed on, divided and cast for the wire."""
        self._refuse_xla()
        have: dict[int, Gradient] = {}
        for position, gradient in zip(own.positions, own.gradients, strict=True):
            twice = position in have
            have[position] = added(have[position], gradient) if twice else gradient
        kinds = self._agree({p: kind_of(g, self.aggregation) for p, g in have.items()})
        # In the order of the variables, in which they may have been inspected before.
        positions = sorted({*kinds.dense, *kinds.sparse})
        whole = [self._filled(have.get(p), p, dense=p in kinds.dense) for p in positions]
        return GradientList([self.aggregation.outgoing(g, self.size) for g in whole], positions)

    def reduce(self, sent: GradientList) -> GradientList:
        """Returns the sums of what all ranks sent, in the variables' own dtypes."""
        arrived: dict[int, Gradient] = {}
        for lane, part in enumerate(self.parts(sent)):
            positions = [sent.positions[i] for i in part]
            label = _label([variable_name(self._variables[p]) for p in positions])
            gradients = [sent.gradients[i] for i in part]
            reduced = self._send(gradients, self._first_bucket + 3 * lane, label)
            arrived.update(zip(positions, reduced, strict=True))
        return GradientList([self._settled(arrived[p], p) for p in sent.positions], sent.positions)

    def parts(self, sent: GradientList) -> list[list[int]]:
        """Returns one part for each bucket, then one for each sparse gradient."""
        kinds = self._kinds
        assert kinds is not None  # `outgoing` came first
        entry = {position: i for i, position in enumerate(sent.positions)}
        plan = self.plan(kinds.dense)
        dense = [[entry[kinds.dense[i]] for i in bucket.indices] for bucket in plan.buckets]
        return dense + [[entry[position]] for position in kinds.sparse]

    def plan(self, positions: Sequence[int]) -> Plan:
        """Returns the buckets of the variables at these positions."""
        return self.aggregation.plan([self._variables[p] for p in positions], self.engine)

    def prepare(self, trained: Sequence[Any], others: Sequence[Any], settings: Settings) -> None:
        """Compares the variables of all ranks, and gives all of them rank 0's values.

        Args:
            trained: the trained variables.
            others: the optimizer's variables.
            settings: gives what else has to be the same on all ranks.

        Raises:
            RuntimeError: on every rank, if the ranks do not train the same variables with the
                same settings, or if an eager first step was computed from different weights.
        """
        if self._first_lane >= 0:
            return
        own = {**self.aggregation.get_config(), "engine": self.engine.name}
        super().prepare(trained, others, lambda: {**own, **settings()})
        self._first_bucket = take_lanes(self.engine, 3 * len(self._variables))
        if not self.aggregation.broadcast_initial:
            return
        if tf.executing_eagerly():
            require_equal_weights(self.engine, trained)
        with tf.init_scope():
            self.broadcast([*trained, *others])

    def broadcast(self, variables: Sequence[Any], root_rank: int = 0) -> None:
        """Overwrites variables with those of one rank (eagerly)."""
        values = [tf.convert_to_tensor(variable) for variable in variables]
        lane = self._first_lane
        received = self.engine.broadcast(
            values, root_rank=root_rank, lane=lane, label="initial variables"
        )
        for variable, value in zip(variables, received, strict=True):
            variable.assign(value)

    def _send(self, gradients: list[Gradient], lane: int, label: str) -> list[Gradient]:
        if not isinstance(gradients[0], tf.IndexedSlices):
            return self.engine.all_reduce(gradients, reduction="sum", lane=lane, label=label)
        (slices,) = gradients
        values = self.engine.all_gather(slices.values, lane=lane, label=label)
        indices = self.engine.all_gather(slices.indices, lane=lane + 1, label=f"{label} (indices)")
        return [tf.IndexedSlices(values, indices, slices.dense_shape)]

    def _settled(self, gradient: Gradient, position: int) -> Gradient:
        """Casts to the variable's dtype, then sums the rows that several ranks have sent."""
        dtype = tf.as_dtype(self._variables[position].dtype)
        gradient = map_values(lambda values: tf.cast(values, dtype), gradient)
        return deduplicated(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient

    def _filled(self, gradient: Gradient | None, position: int, *, dense: bool) -> Gradient:
        variable = self._variables[position]
        shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
        if gradient is None and dense:
            return tf.zeros(shape, dtype)
        if gradient is None:
            rows = tf.zeros([0, *shape[1:]], dtype)
            return tf.IndexedSlices(rows, tf.zeros([0], tf.int64), tf.constant(shape.as_list()))
        if dense:
            return tf.convert_to_tensor(gradient)
        return tf.IndexedSlices(
            gradient.values, tf.cast(gradient.indices, tf.int64), gradient.dense_shape
        )

    def _agree(self, kinds: dict[int, str]) -> Kinds:
        own = [kinds.get(position, "none") for position in range(len(self._variables))]
        if self._kinds is None:
            self._kinds = agreed_kinds(self.engine.exchange(own, "kinds of gradients"))
        known = {*self._kinds.dense, *self._kinds.sparse}
        new = [variable_name(self._variables[p]) for p in kinds if p not in known]
        if new:
            raise RuntimeError(
                "Every rank must send the same gradients in every step, as in the first one, in "
                f"which no rank had a gradient for {new[0]!r}. Freeze or unfreeze layers before "
                "the first step, or make a new optimizer."
            )
        return self._kinds


def _label(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)} variables)"
