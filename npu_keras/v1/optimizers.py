# SPDX-License-Identifier: Apache-2.0
"""The `tf.compat.v1.train` optimizers with Ascend's names."""

from npu_keras.constructors import (
    ConstructedByFlags,
    ConstructedWithRanks,
    ConstructedWithScale,
)
from npu_keras.v1.host import V1Host


class NPULossScaleOptimizer(ConstructedWithScale, V1Host):
    """Scales the loss, and skips a step whose gradients overflowed.

    In a graph the scale can be fetched as `loss_scale:0`, the counters as `good_steps:0` and
    `bad_steps:0`: their values before the step, if fetched with it. They are the global variables
    `loss_scaling/loss_scale` and so on, which a `Saver` saves. Whether the step was free of
    overflow can be fetched as `overflow_status_reduce_all:0`.

    Args:
        opt: the optimizer that updates the variables: a `tf.compat.v1.train.Optimizer`, or any
            object with `compute_gradients` and `apply_gradients`.
        loss_scale_manager: how the loss scale moves: `FixedLossScaleManager` or
            `ExponentialUpdateLossScaleManager`, a subclass of one of them that overrides
            `update_loss_scale` or `get_loss_scale`, or your own `LossScaleManager`.
        is_distributed: whether ranks decide together about an overflow. Gradients are aggregated
            by a distributed `opt` (`NPUDistributedOptimizer`), with which the decision is common
            whatever this flag says.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"` (hardware that clamps).

    Raises:
        TypeError: if `opt` scales the loss already, belongs to another wrapper, or is no
            optimizer of `tf.compat.v1.train`.
        ValueError: for an unknown `overflow_mode`.

    Example:

    ```python
    manager = npu_keras.ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=2000)
    optimizer = npu_keras.v1.NPULossScaleOptimizer(tf.compat.v1.train.AdamOptimizer(), manager)
    train_op = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    ```
    """


class NPUOptimizer(ConstructedByFlags, V1Host):
    """Loss scaling and distributed gradient aggregation in one optimizer, each by a flag.

    Args:
        opt: the optimizer that updates the variables: a `tf.compat.v1.train.Optimizer`, or any
            object with `compute_gradients` and `apply_gradients`.
        loss_scale_manager: how the loss scale moves; needed with `is_loss_scale=True`.
        is_distributed: whether gradients are aggregated over ranks.
        is_loss_scale: whether the loss is scaled and a step that overflowed is skipped.
        is_tailing_optimization: whether the decision is made from the rank's own gradients alone,
            so that what has arrived is applied while the last part of the aggregation is on its
            way; what the script does to gradients after `compute_gradients` is then not checked.
            Only with `is_distributed=True`, otherwise ignored. Must agree with `NPURunConfig`.
        name: name of the optimizer; by default `"NPUOptimizer"` and the class name of `opt`.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"` (hardware that clamps).
        aggregation: settings of the aggregation; only with `is_distributed=True`.

    Raises:
        ValueError: for `is_loss_scale=True` without a manager, or an unknown `overflow_mode`.
        TypeError: if `opt` scales the loss already, belongs to another wrapper, or is no
            optimizer of `tf.compat.v1.train`.

    Example:

    ```python
    manager = npu_keras.ExponentialUpdateLossScaleManager(
        init_loss_scale=2**32, incr_every_n_steps=1000, decr_ratio=0.5
    )
    optimizer = npu_keras.v1.NPUOptimizer(
        tf.compat.v1.train.AdamOptimizer(1e-3), manager, is_loss_scale=True
    )
    train_op = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    ```
    """


class NPUDistributedOptimizer(ConstructedWithRanks, V1Host):
    """Aggregates the gradients of all ranks in `compute_gradients`.

    Args:
        optimizer: the optimizer that updates the variables: a `tf.compat.v1.train.Optimizer`,
            any object with `compute_gradients` and `apply_gradients`, or one with loss scaling.
        is_weight_update_sharding: not available here; leave it False.
        name: name of the optimizer; by default `"Distributed"` and the class name of `optimizer`.
        aggregation: the settings; by default the mean over ranks, by the engine found.

    Raises:
        TypeError: if `optimizer` aggregates already, belongs to another wrapper, or is no
            optimizer of `tf.compat.v1.train`.
        ValueError: for `is_weight_update_sharding=True`.

    Example:

    ```python
    optimizer = npu_keras.v1.NPUDistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
    train_op = optimizer.minimize(loss)  # under `python -m npu_keras run -n 2`
    hooks = [npu_keras.v1.BroadcastGlobalVariablesHook(0)]
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        session.run(train_op)
    ```
    """

    _no_sharding = (
        "The optimizers of `tf.compat.v1.train` make their slots for all variables, so that "
        "`is_weight_update_sharding=True` would save no memory. Leave it False, or use "
        "`npu_keras.NPUDistributedOptimizer` with a Keras 3 optimizer."
    )
