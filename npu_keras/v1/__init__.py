# SPDX-License-Identifier: Apache-2.0
"""Loss scaling and gradient aggregation for the optimizers of `tf.compat.v1.train`."""

from npu_keras.v1.broadcast import BroadcastGlobalVariablesHook, broadcast_global_variables
from npu_keras.v1.optimizers import NPUDistributedOptimizer, NPULossScaleOptimizer, NPUOptimizer

__all__ = [
    "BroadcastGlobalVariablesHook",
    "NPUDistributedOptimizer",
    "NPULossScaleOptimizer",
    "NPUOptimizer",
    "broadcast_global_variables",
]
