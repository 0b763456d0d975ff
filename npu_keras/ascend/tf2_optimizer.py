# SPDX-License-Identifier: Apache-2.0
"""The loss-scaled optimizer of Ascend's adapter for TensorFlow 2."""

from typing import Any

import tensorflow as tf
import tf_keras

from npu_keras.loss_scale import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)
from npu_keras.products import AUTO
from npu_keras.tf_keras import NPULossScaleOptimizer
from npu_keras.tf_keras.revive import revived_settings

_INITIAL_SCALE, _GROWTH_STEPS = 2**15, 2000


@tf_keras.saving.register_keras_serializable("npu_keras.ascend")
class NpuLossScaleOptimizer(NPULossScaleOptimizer):
    """`npu_device.train.optimizer.NpuLossScaleOptimizer`: a tf_keras optimizer with loss scaling.

    A dynamic scale doubles after `dynamic_growth_steps` finite steps in a row and halves at each
    overflow, never below 1. It is a `tf_keras.mixed_precision.LossScaleOptimizer`. As documented
    for the adapter, and unlike the other classes of this package, a skipped step advances
    `iterations`.

    Unlike the adapter's class: `last_step_finite` says in every overflow mode whether the last step
    was applied (there it keeps its initial False in INF/NaN mode), and ranks decide together in
    every mode. A script that never calls `get_scaled_loss` is warned.

    Args:
        inner_optimizer: the tf_keras optimizer that updates the weights.
        dynamic: whether the scale moves.
        initial_scale: the first scale, 2**15 by default; needed with `dynamic=False`.
        dynamic_growth_steps: 2000 by default; only with `dynamic=True`.

    Raises:
        ValueError: for arguments that do not go together.
        TypeError: if `inner_optimizer` scales already, or is no tf_keras optimizer.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
    ) -> None:
        manager = _manager(dynamic, initial_scale, dynamic_growth_steps)
        super().__init__(inner_optimizer, manager, is_distributed=True, overflow_mode=AUTO)

    def _after_step(self) -> None:
        super()._after_step()
        iterations = self.iterations
        skipped = tf.logical_not(tf.convert_to_tensor(self._scaling.state.last_step_finite))
        iterations.assign_add(tf.cast(skipped, iterations.dtype))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, JSON-safe."""
        return {
            "inner_optimizer": tf_keras.optimizers.serialize(self.inner_optimizer),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from `get_config`'s result, which is left as it is."""
        config = dict(config)
        inner = revived_settings({"opt": config.pop("inner_optimizer")}, custom_objects)["opt"]
        return cls(inner, **config)


def _manager(
    dynamic: bool, initial_scale: float | None, growth_steps: int | None
) -> LossScaleManager:
    if dynamic:
        return ExponentialUpdateLossScaleManager(
            _INITIAL_SCALE if initial_scale is None else initial_scale,
            _GROWTH_STEPS if growth_steps is None else growth_steps,
            decr_every_n_nan_or_inf=1,
            decr_ratio=0.5,
        )
    if initial_scale is None or growth_steps is not None:
        raise ValueError(
            "`dynamic=False` needs an `initial_scale`, and no `dynamic_growth_steps`. "
            f"Received: initial_scale={initial_scale!r}, dynamic_growth_steps={growth_steps!r}"
        )
    return FixedLossScaleManager(initial_scale)
