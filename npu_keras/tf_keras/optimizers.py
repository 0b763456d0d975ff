# SPDX-License-Identifier: Apache-2.0
"""The tf_keras optimizers with Ascend's names: wrappers around any tf_keras optimizer."""

import tf_keras

from npu_keras.constructors import (
    ConstructedByFlags,
    ConstructedWithRanks,
    ConstructedWithScale,
)
from npu_keras.tf_keras.host import PACKAGE
from npu_keras.tf_keras.wrapper import TfKerasWrapper


@tf_keras.saving.register_keras_serializable(PACKAGE)
class NPULossScaleOptimizer(ConstructedWithScale, TfKerasWrapper):
    """Scales the loss, and skips a step whose gradients overflowed.

    A skipped step does not advance `iterations`; with `tf_keras.mixed_precision`'s own
    `LossScaleOptimizer` it does, so that a learning-rate schedule runs ahead of the weights.

    Args:
        opt: the tf_keras optimizer that updates the weights, new or legacy.
        loss_scale_manager: how the loss scale moves; the managers of `npu_keras`.
        is_distributed: whether ranks decide together about an overflow. Gradients are aggregated
            by a distributed `opt` (`NPUDistributedOptimizer`) or by a `tf.distribute` strategy;
            with either of them the decision is common whatever this flag says.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"` (hardware that clamps).

    Raises:
        TypeError: if `opt` scales the loss already, belongs to another wrapper, or is no tf_keras
            optimizer.
        ValueError: for an unknown `overflow_mode`.

    Example:

    ```python
    manager = npu_keras.ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=2000)
    optimizer = npu_keras.tf_keras.NPULossScaleOptimizer(tf_keras.optimizers.Adam(1e-3), manager)
    model.compile(optimizer, loss="mse")
    ```
    """


@tf_keras.saving.register_keras_serializable(PACKAGE)
class NPUOptimizer(ConstructedByFlags, TfKerasWrapper):
    """Loss scaling and distributed gradient aggregation in one optimizer, each by a flag.

    A skipped step does not advance `iterations`; with `tf_keras.mixed_precision`'s own
    `LossScaleOptimizer` it does.

    Args:
        opt: the tf_keras optimizer that updates the weights, new or legacy.
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
        TypeError: if `opt` scales the loss already, belongs to another wrapper, or is no tf_keras
            optimizer.

    Example:

    ```python
    manager = npu_keras.ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=2000)
    optimizer = npu_keras.tf_keras.NPUOptimizer(
        tf_keras.optimizers.Adam(1e-3), manager, is_loss_scale=True
    )
    model.compile(optimizer, loss="mse")
    ```
    """


@tf_keras.saving.register_keras_serializable(PACKAGE)
class NPUDistributedOptimizer(ConstructedWithRanks, TfKerasWrapper):
    """Aggregates the gradients of all ranks before the update.

    Args:
        optimizer: the tf_keras optimizer that updates the weights, or one with loss scaling.
        is_weight_update_sharding: only False; each rank's own slots are for Keras 3 optimizers, in
            `npu_keras.NPUDistributedOptimizer`.
        name: name of the optimizer; by default `"Distributed"` and the class name of `optimizer`.
        aggregation: the settings; by default the mean over ranks, by the engine found.

    Raises:
        TypeError: if `optimizer` aggregates already, belongs to another wrapper, or is no tf_keras
            optimizer.
        ValueError: for `is_weight_update_sharding=True`.

    Example:

    ```python
    optimizer = npu_keras.tf_keras.NPUDistributedOptimizer(tf_keras.optimizers.SGD(0.1))
    model.compile(optimizer, loss="mse")  # under `python -m npu_keras run -n 2`
    ```
    """

    _no_sharding = (
        "`is_weight_update_sharding=True` needs a Keras 3 optimizer in "
        "`npu_keras.NPUDistributedOptimizer`. With tf_keras leave it out: every rank then updates "
        "all variables, to the same values."
    )
