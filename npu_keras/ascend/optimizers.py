# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow 1 optimizers of Ascend's adapter, with its signatures and defaults.

They take an optimizer of `tf.compat.v1.train`, and also one of tf_keras or Keras 3, for which they
are the class of the same name in `npu_keras.tf_keras` or `npu_keras`. How an overflow is
recognised follows from the product: `overflow_mode="auto"`, see `npu_keras.products`.
"""

from typing import Any

from npu_keras import v1
from npu_keras.ascend.kinds import is_keras, same_class_for
from npu_keras.products import AUTO


class NPULossScaleOptimizer(v1.NPULossScaleOptimizer):
    """Scales the loss, and skips a step whose gradients overflowed.

    Unlike the adapter's class it takes gradients that are None in every overflow mode, heeds
    `enable_overflow_check=False` in every mode, and lets all ranks decide together wherever
    gradients are aggregated, in INF/NaN mode too.

    Args:
        opt: the optimizer that updates the variables.
        loss_scale_manager: how the loss scale moves.
        is_distributed: whether ranks decide together about an overflow.
    """

    def __new__(cls, opt: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes the class for a Keras optimizer where `opt` is one."""
        if is_keras(opt):
            kwargs["overflow_mode"] = AUTO
            return same_class_for(opt, "NPULossScaleOptimizer")(opt, *args, **kwargs)
        return super().__new__(cls)

    def __init__(self, opt: Any, loss_scale_manager: Any, is_distributed: bool = False) -> None:
        super().__init__(opt, loss_scale_manager, is_distributed, overflow_mode=AUTO)


class NPUOptimizer(v1.NPUOptimizer):
    """Loss scaling and distributed gradient aggregation in one optimizer, each by a flag.

    Unlike the adapter's class it takes gradients that are None; needs no `JOB_ID`; ignores
    `is_tailing_optimization=True` without `is_distributed=True`, as documented, instead of failing
    at the first step; attributes no overflow to the next step; and raises a ValueError where the
    flag and `NPURunConfig` disagree.

    Args:
        opt: the optimizer that updates the variables.
        loss_scale_manager: how the loss scale moves; needed with `is_loss_scale=True`.
        is_distributed: whether gradients are aggregated over ranks.
        is_loss_scale: whether the loss is scaled and a step that overflowed is skipped.
        is_tailing_optimization: whether the last part of the aggregation overlaps the update.
        name: name of the optimizer.
    """

    def __new__(cls, opt: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes the class for a Keras optimizer where `opt` is one."""
        if is_keras(opt):
            kwargs["overflow_mode"] = AUTO
            return same_class_for(opt, "NPUOptimizer")(opt, *args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        opt: Any,
        loss_scale_manager: Any = None,
        is_distributed: bool = False,
        is_loss_scale: bool = False,
        is_tailing_optimization: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            opt,
            loss_scale_manager,
            is_distributed,
            is_loss_scale,
            is_tailing_optimization,
            name,
            overflow_mode=AUTO,
        )


class NPUDistributedOptimizer(v1.NPUDistributedOptimizer):
    """Aggregates the gradients of all ranks in `compute_gradients`.

    Unlike the adapter's class it needs neither `JOB_ID` nor `DEVICE_ID`, and divides before it
    sums, so that a mean of finite float16 gradients cannot overflow on the way.
    `is_weight_update_sharding=True` is refused: see `npu_keras.NPUDistributedOptimizer` for it.

    Args:
        optimizer: the optimizer that updates the variables.
        is_weight_update_sharding: leave it False.
        name: name of the optimizer.
    """

    def __new__(cls, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes the class for a Keras optimizer where `optimizer` is one."""
        if is_keras(optimizer):
            return same_class_for(optimizer, "NPUDistributedOptimizer")(optimizer, *args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self, optimizer: Any, is_weight_update_sharding: bool = False, name: str | None = None
    ) -> None:
        super().__init__(optimizer, is_weight_update_sharding, name)
