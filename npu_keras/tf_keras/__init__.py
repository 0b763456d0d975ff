# SPDX-License-Identifier: Apache-2.0
"""Loss scaling and gradient aggregation for `tf_keras` optimizers, new and legacy.

The loss-scale managers, `GradientAggregation` and the callbacks are those of `npu_keras`.
"""

from npu_keras.tf_keras.mixins import GradientAggregationMixin, LossScaleMixin
from npu_keras.tf_keras.optimizers import (
    NPUDistributedOptimizer,
    NPULossScaleOptimizer,
    NPUOptimizer,
)

__all__ = [
    "GradientAggregationMixin",
    "LossScaleMixin",
    "NPUDistributedOptimizer",
    "NPULossScaleOptimizer",
    "NPUOptimizer",
]
