# SPDX-License-Identifier: Apache-2.0
"""The Keras 3 optimizers with Ascend's names: wrappers around any Keras 3 optimizer."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from npu_keras.composites import is_composite
from npu_keras.constructors import (
    ConstructedByFlags,
    ConstructedWithRanks,
    ConstructedWithScale,
)
from npu_keras.host import PACKAGE, KerasHost
from npu_keras.sharding import WeightUpdateSharding
from npu_keras.wrapper import WrapperHost


@keras.saving.register_keras_serializable(PACKAGE)
class NPULossScaleOptimizer(ConstructedWithScale, WrapperHost):
    """Scales the loss, and skips a step whose gradients overflowed.

    Args:
        opt: the Keras 3 optimizer that updates the weights.
        loss_scale_manager: how the loss scale moves: `FixedLossScaleManager` or
            `ExponentialUpdateLossScaleManager`, or your own `LossScaleManager`.
        is_distributed: whether ranks decide together about an overflow. Gradients are aggregated
            by a distributed `opt` (`NPUDistributedOptimizer`) or by a `tf.distribute` strategy;
            with either of them the decision is common whatever this flag says.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"` (hardware that clamps).

    Raises:
        TypeError: if `opt` scales the loss already, belongs to another wrapper, or is no Keras 3
            optimizer.
        ValueError: for an unknown `overflow_mode`.

    Example:

    ```python
    manager = npu_keras.ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=2000)
    optimizer = npu_keras.NPULossScaleOptimizer(keras.optimizers.Adam(1e-3), manager)
    model.compile(optimizer, loss="mse")
    ```
    """


@keras.saving.register_keras_serializable(PACKAGE)
class NPUOptimizer(ConstructedByFlags, WrapperHost):
    """Loss scaling and distributed gradient aggregation in one optimizer, each by a flag.

    Args:
        opt: the Keras 3 optimizer that updates the weights.
        loss_scale_manager: how the loss scale moves; needed with `is_loss_scale=True`.
        is_distributed: whether gradients are aggregated over ranks.
        is_loss_scale: whether the loss is scaled and a step that overflowed is skipped.
        is_tailing_optimization: whether the last part of the aggregation overlaps the update;
            only with `is_distributed=True`, otherwise ignored. Must agree with `NPURunConfig`.
        name: name of the optimizer; by default `"NPUOptimizer"` and the class name of `opt`.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"` (hardware that clamps).
        aggregation: settings of the aggregation; only with `is_distributed=True`.

    Raises:
        ValueError: for `is_loss_scale=True` without a manager, or an unknown `overflow_mode`.
        TypeError: if `opt` scales the loss already, belongs to another wrapper, or is no Keras 3
            optimizer.

    Example:

    ```python
    manager = npu_keras.ExponentialUpdateLossScaleManager(
        init_loss_scale=2**32, incr_every_n_steps=1000, decr_ratio=0.5
    )
    optimizer = npu_keras.NPUOptimizer(keras.optimizers.Adam(1e-3), manager, is_loss_scale=True)
    model.compile(optimizer, loss="mse")
    ```
    """


@keras.saving.register_keras_serializable(PACKAGE)
class NPUDistributedOptimizer(ConstructedWithRanks, WrapperHost):
    """Aggregates the gradients of all ranks before the update.

    Args:
        optimizer: the Keras 3 optimizer that updates the weights, or one with loss scaling.
        is_weight_update_sharding: whether each rank updates only the variables it owns and then
            sends them to the others; slots exist only where they are owned.
        name: name of the optimizer; by default `"Distributed"` and the class name of `optimizer`.
        aggregation: the settings; by default the mean over ranks, by the engine found.

    Raises:
        TypeError: if `optimizer` aggregates already, belongs to another wrapper, or is no Keras 3
            optimizer.

    Example:

    ```python
    optimizer = npu_keras.NPUDistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, loss="mse")  # under `python -m npu_keras run -n 2`
    ```
    """

    _sharding: WeightUpdateSharding | None = None

    def _check_sharded(self, optimizer: Any) -> None:
        if isinstance(optimizer, KerasHost):
            raise TypeError(
                "With `is_weight_update_sharding=True` the optimizer inside must be a plain one; "
                "put loss scaling outside: `NPULossScaleOptimizer(NPUDistributedOptimizer(opt, "
                "is_weight_update_sharding=True), manager)`."
            )

    def _build_target(self, variables: list[Any]) -> None:
        if self.is_weight_update_sharding:
            if tf.distribute.get_strategy().num_replicas_in_sync > 1:
                raise ValueError(
                    "`is_weight_update_sharding=True` divides the update among ranks, and a "
                    "`tf.distribute` strategy has replicas instead. Leave out the strategy and "
                    "start a process for each device: `python -m npu_keras run -n 2 script.py`."
                )
            if self.inner_optimizer.gradient_accumulation_steps:
                raise ValueError(
                    "`gradient_accumulation_steps` needs an accumulator of every variable on every "
                    "rank, which `is_weight_update_sharding=True` takes away. Use one of them."
                )
            if is_composite(self.inner_optimizer):
                raise ValueError(
                    f"{type(self.inner_optimizer).__name__} divides the variables among other "
                    "optimizers, and `is_weight_update_sharding=True` among ranks. Use one of them."
                )
            assert self._aggregation is not None  # given by the constructor
            engine = self._aggregation.engine()
            self._sharding = WeightUpdateSharding(self.inner_optimizer, engine, variables)
        super()._build_target(variables)

    def _apply_target(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if self._sharding is None:
            super()._apply_target(gradients, variables)
        else:
            self._sharding.apply(gradients, variables)

    def _compilation_obstacle(self) -> str | None:
        if self._sharding is not None:
            return "each rank updates its own shard"
        return super()._compilation_obstacle()

    def _own_variables(self) -> list[Any]:
        if self._sharding is None:
            return super()._own_variables()
        return [*self._variables, *self._sharding.common_variables()]

    def _after_step(self) -> None:
        if self._sharding is None:
            super()._after_step()
        else:
            self._sharding.publish()

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets final values, such as moving averages, at the end of training."""
        if self._sharding is None:
            super().finalize_variable_values(var_list)
        else:
            self._sharding.finalize()
