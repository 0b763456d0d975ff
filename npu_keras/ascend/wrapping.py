# SPDX-License-Identifier: Apache-2.0
"""The functions by which scripts for Ascend make an optimizer aggregate gradients."""

from typing import Any

from npu_keras.aggregation import GradientAggregation
from npu_keras.ascend.collectives import check_fusion
from npu_keras.ascend.hardware import check_group, warn_once
from npu_keras.ascend.kinds import from_registry, is_keras, same_class_for
from npu_keras.ascend.optimizers import NPUDistributedOptimizer
from npu_keras.mixins import StepMixin


def npu_distributed_optimizer_wrapper(optimizer: Any) -> Any:
    """Makes an optimizer average its gradients over ranks.

    The adapter changes the optimizer in place, twice when called twice. Here an optimizer with loss
    scaling is changed in place and returned, any other comes back in a wrapper, and a second call
    is a TypeError. Keras optimizers average first and clip then, where the adapter clips on each
    rank.

    Args:
        optimizer: an optimizer of `tf.compat.v1.train`, tf_keras or Keras 3, or the name of one.

    Returns:
        The optimizer to train with.
    """
    return _distributed(optimizer, GradientAggregation())


def npu_tf_optimizer(opt: Any) -> Any:
    """Makes an optimizer of `tf.compat.v1.train` average its gradients over ranks."""
    return NPUDistributedOptimizer(opt)


def npu_keras_optimizer(opt: Any) -> Any:
    """Makes a Keras optimizer average its gradients over ranks; see `KerasDistributeOptimizer`."""
    return KerasDistributeOptimizer(opt)


def KerasDistributeOptimizer(  # noqa: N802, the adapter's class
    optimizer: Any, name: str = "NpuKerasOptimizer", **kwargs: Any
) -> Any:
    """Makes a Keras optimizer average its gradients over ranks.

    Unlike the adapter's class the result has the learning rate, the `iterations` and all other
    attributes of the optimizer inside, can be saved and loaded, and works with callbacks that
    change the learning rate.

    Args:
        optimizer: an optimizer of tf_keras or Keras 3, or the name of one.
        name: name of the result.
        **kwargs: ignored; the adapter hands them to a base class that does not use them.
    """
    for key in kwargs:
        warn_once(f"KerasDistributeOptimizer({key}=...)", "the optimizer inside has its own")
    optimizer = from_registry(optimizer)
    if not is_keras(optimizer):
        return NPUDistributedOptimizer(optimizer, name=name)
    return same_class_for(optimizer, "NPUDistributedOptimizer")(optimizer, name=name)


def npu_distributed_keras_optimizer_wrapper(
    optimizer: Any,
    reduce_reduction: str = "mean",
    fusion: int = 1,
    fusion_id: int = -1,
    group: str = "hccl_world_group",
) -> Any:
    """Makes a Keras optimizer aggregate its gradients over ranks.

    With `NpuLossScaleOptimizer` either may be inside: gradients are aggregated before the overflow
    is looked for, so that all ranks decide alike. With the adapter and INF/NaN mode the inner
    wrapper aggregates behind a decision that each rank made alone, and the job can hang.

    Args:
        optimizer: an optimizer of tf_keras or Keras 3, or the name of one.
        reduce_reduction: `"mean"` or `"sum"`.
        fusion: 0, 1 or 2; without effect, as buckets are made by the split strategy.
        fusion_id: -1 with `fusion=1`.
        group: only `"hccl_world_group"`.

    Returns:
        The optimizer to train with: the same one if it has loss scaling, else a wrapper.

    Raises:
        ValueError: for another reduction, group or fusion.
        TypeError: if it aggregates already.
    """
    check_fusion(fusion, fusion_id)
    check_group(group)
    return _distributed(optimizer, GradientAggregation(reduce_reduction))


def _distributed(optimizer: Any, aggregation: GradientAggregation) -> Any:
    optimizer = from_registry(optimizer)
    if isinstance(optimizer, StepMixin):
        return _aggregating(optimizer, aggregation)
    if is_keras(optimizer):
        make = same_class_for(optimizer, "NPUDistributedOptimizer")
        return make(optimizer, aggregation=aggregation)
    made: Any = NPUDistributedOptimizer(optimizer)
    vars(made).update(_aggregation=aggregation)
    return made


def _aggregating(optimizer: Any, aggregation: GradientAggregation) -> Any:
    """Lets an optimizer of this package aggregate, and stay of the class scripts ask for."""
    if optimizer._aggregation is not None:
        raise TypeError(
            f"This {type(optimizer).__name__} aggregates gradients already. Wrap it once only."
        )
    vars(optimizer).update(_aggregation=aggregation, _channels={})
    return optimizer
