# SPDX-License-Identifier: Apache-2.0
"""How the gradients of several ranks become one: settings, and what is sent.

Dense gradients travel in buckets, sparse ones by gather. Each rank divides by the number of ranks
before it sends, so that a mean of finite numbers cannot overflow on the way.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from npu_keras import buckets, engines
from npu_keras._arguments import flag, is_real
from npu_keras.inputs import gradient_list, present_tensors, variable_list
from npu_keras.sparse import Gradient, deduplicated, map_values

REDUCTIONS = ("mean", "sum")
SPARSE = ("gather", "dense")
_STRATEGIES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        buckets.SplitByBytes,
        buckets.SplitByIndex,
        buckets.SplitByPercentage,
        buckets.SplitHcclDefault,
    )
}
WIRE_DTYPES = {None: None, "bf16": tf.bfloat16, "fp16": tf.float16}


class GradientAggregation:
    """Settings of the aggregation of gradients over ranks.

    Args:
        reduction: `"mean"` or `"sum"` over ranks.
        split: how dense gradients are cut into buckets: None (by bytes, the engine's own best),
            a number of bytes, a list of indices (`[20, 100, 159]`: the last gradient of each
            segment), a list of percentages (`[60, 20, 20]`), or a strategy of `npu_keras.buckets`.
            Gradients are numbered in the order in which backward makes them, last layer first.
        compression: dtype on the wire: None (as it is), `"bf16"` or `"fp16"`. A cast that
            overflows counts as an overflow of the step, on all ranks.
        sparse: `"gather"` sends the rows of IndexedSlices, duplicates summed first; `"dense"`
            converts them.
        engine: None (found), a name of `npu_keras.engines.NAMES`, or an engine.
        timeout_s: the longest wait for another rank, in seconds.
        broadcast_initial: whether rank 0's weights, slots and loss scale replace those of the
            other ranks before the first step.

    Raises:
        ValueError: for a value that is none of these.

    Example:

    ```python
    aggregation = npu_keras.GradientAggregation(compression="bf16")
    optimizer = npu_keras.NPUDistributedOptimizer(
        keras.optimizers.Adam(1e-3), aggregation=aggregation
    )
    ```
    """

    def __init__(
        self,
        reduction: str = "mean",
        split: Any = None,
        compression: str | None = None,
        sparse: str = "gather",
        engine: str | engines.Engine | None = None,
        timeout_s: float = engines.DEFAULT_TIMEOUT_S,
        *,
        broadcast_initial: bool = True,
    ) -> None:
        self.reduction = _one_of("reduction", reduction, REDUCTIONS)
        self.compression = _one_of("compression", compression, tuple(WIRE_DTYPES))
        self.sparse = _one_of("sparse", sparse, SPARSE)
        self.split = buckets.parse_split(split)
        self.timeout_s = _positive("timeout_s", timeout_s)
        self.broadcast_initial = flag("broadcast_initial", broadcast_initial)
        self._engine = _engine_or_name(engine)

    def engine(self) -> engines.Engine:
        """Returns the engine, found by name or by the environment."""
        if self._engine is None or isinstance(self._engine, str):
            return engines.find(self._engine, timeout_s=self.timeout_s)
        return self._engine

    @property
    def wire_dtype(self) -> tf.DType | None:
        """dtype of floating gradients on the wire; None for their own."""
        return WIRE_DTYPES[self.compression]

    def plan(self, variables: Sequence[Any], engine: engines.Engine) -> buckets.Plan:
        """Returns which variables travel together, all of them dense.

        Args:
            variables: anything with `name` (or `path`), `shape` and `dtype`, in training order.
            engine: decides the size of a bucket where nothing else does.
        """
        strategy = self.split or buckets.split_strategy() or self._default_split(engine)
        items = [self._item(index, variable) for index, variable in enumerate(variables)]
        return strategy.plan(items[::-1])

    def describe(self, variables: Sequence[Any]) -> str:
        """Returns a table of the plan: segment, dtype, variables, bytes.

        Args:
            variables: the variables to be trained, for example `model.trainable_variables`.
        """
        return self.plan(variable_list("`variables`", variables), self.engine()).describe()

    def lost_to_underflow(self, gradients: Sequence[Gradient], size: int) -> tf.Tensor:
        """Returns the share of elements that the wire dtype turns into 0, a float32 scalar.

        Args:
            gradients: scaled gradients, as they come from the tape; None is passed over.
            size: number of ranks, by which a mean divides before it sends.

        Raises:
            ValueError: if there is no gradient.
        """
        given = present_tensors(gradient_list("`gradients`", gradients))
        counts = [self._count_lost(g, size) for g in given if g is not None]
        if not counts:
            raise ValueError(f"Expected at least one gradient. Received: {gradients!r}")
        lost = tf.add_n([pair[0] for pair in counts])
        return tf.math.divide_no_nan(lost, tf.add_n([pair[1] for pair in counts]))

    def outgoing(self, gradient: Gradient, size: int) -> Gradient:
        """Returns what is sent of one gradient: divided, cast, duplicates summed.

        Args:
            gradient: tensor or IndexedSlices.
            size: number of ranks.
        """
        if isinstance(gradient, tf.IndexedSlices):
            if self.sparse == "dense":
                return self.outgoing(tf.convert_to_tensor(gradient), size)
            gradient = deduplicated(gradient)
        return map_values(lambda values: self._to_wire(self._divide(values, size)), gradient)

    def get_config(self) -> dict[str, Any]:
        """Returns the settings, JSON-safe; an engine by its name only."""
        engine = self._engine
        return {
            "reduction": self.reduction,
            "split": _split_config(self.split),
            "compression": self.compression,
            "sparse": self.sparse,
            "engine": engine if engine is None or isinstance(engine, str) else engine.name,
            "timeout_s": self.timeout_s,
            "broadcast_initial": self.broadcast_initial,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GradientAggregation":
        """Makes settings from `get_config`'s result.

        Args:
            config: what `get_config` returned, or a file that nobody vouches for.

        Raises:
            TypeError: for what is no config.
            ValueError: for a setting that there is not.
        """
        if not isinstance(config, dict):
            raise TypeError(f"Expected a config of GradientAggregation. Received: {config!r}")
        return cls(**{**config, "split": _revived_split(config.get("split"))})

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"GradientAggregation({arguments})"

    def _default_split(self, engine: engines.Engine) -> buckets.SplitStrategy:
        return buckets.SplitByBytes(engine.bucket_bytes)

    def _item(self, index: int, variable: Any) -> buckets.Item:
        dtype = tf.as_dtype(variable.dtype)
        wire = self.wire_dtype if self.wire_dtype and dtype in (tf.float32, tf.float64) else dtype
        elements = tf.TensorShape(variable.shape).num_elements()
        name = getattr(variable, "path", variable.name)
        return buckets.Item(index, name, wire.name, elements * wire.size)

    def _divide(self, values: tf.Tensor, size: int) -> tf.Tensor:
        if self.reduction == "sum" or size == 1:
            return values
        return values / tf.constant(size, values.dtype)

    def _to_wire(self, values: tf.Tensor) -> tf.Tensor:
        if self.wire_dtype is None or values.dtype not in (tf.float32, tf.float64):
            return values
        return tf.cast(values, self.wire_dtype)

    def _count_lost(self, gradient: Gradient, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        there = values != 0
        lost = tf.logical_and(there, self._to_wire(self._divide(values, size)) == 0)
        return tuple(tf.math.count_nonzero(mask, dtype=tf.float32) for mask in (lost, there))


class Kinds(NamedTuple):
    """What every rank sends, agreed by all: positions of dense and of sparse gradients."""

    dense: tuple[int, ...]
    sparse: tuple[int, ...]


def agreed_kinds(every_rank: Sequence[Sequence[str]]) -> Kinds:
    """Returns what is sent, given what each rank has.

    A gradient that any rank has is sent by all, as zeros by those that lack it; one that is dense
    on any rank is dense on all.

    Args:
        every_rank: for each rank, for each variable `"dense"`, `"sparse"` or `"none"`.
    """
    columns = list(zip(*every_rank, strict=True))
    dense = [i for i, column in enumerate(columns) if "dense" in column]
    sparse = [i for i, column in enumerate(columns) if "sparse" in column and i not in dense]
    return Kinds(tuple(dense), tuple(sparse))


def kind_of(gradient: Gradient | None, aggregation: GradientAggregation) -> str:
    """Returns `"dense"`, `"sparse"` or `"none"`."""
    if gradient is None:
        return "none"
    gathered = isinstance(gradient, tf.IndexedSlices) and aggregation.sparse == "gather"
    return "sparse" if gathered else "dense"


def settings_of(aggregation: Any) -> GradientAggregation:
    """Returns the settings that an optimizer was given, by default the mean over ranks.

    Args:
        aggregation: `GradientAggregation` or None.

    Raises:
        TypeError: for anything else.
    """
    if aggregation is None:
        return GradientAggregation()
    if not isinstance(aggregation, GradientAggregation):
        raise TypeError(
            "`aggregation` must be a `npu_keras.GradientAggregation`, for example "
            f'`GradientAggregation(compression="bf16")`. Received: aggregation={aggregation!r}'
        )
    return aggregation


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}")
    return value


def _positive(name: str, value: Any) -> float:
    if not (is_real(value) and value > 0):
        raise ValueError(f"`{name}` must be a number above 0. Received: {name}={value!r}")
    return math.inf if value > sys.float_info.max else float(value)


def _engine_or_name(engine: Any) -> Any:
    if engine is None or isinstance(engine, engines.Engine):
        return engine
    return _one_of("engine", engine, engines.NAMES)


def _split_config(split: Any) -> Any:
    if split is None:
        return None
    values = list(vars(split).values()) if hasattr(split, "__dict__") else []
    value = list(values[0]) if values and isinstance(values[0], tuple) else (values or [None])[0]
    return {"strategy": type(split).__name__, "value": value}


def _revived_split(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    strategy, value = _STRATEGIES.get(str(config.get("strategy"))), config.get("value")
    if strategy is None:
        names = sorted(_STRATEGIES)
        raise ValueError(f"`split` must be one of {names}. Received: split={config!r}")
    return strategy() if value is None else strategy(value)
