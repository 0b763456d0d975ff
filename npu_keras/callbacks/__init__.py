# SPDX-License-Identifier: Apache-2.0
"""Callbacks that show what loss scaling does during `fit`, and keep ranks together."""

from npu_keras.callbacks.broadcast_variables import BroadcastVariables
from npu_keras.callbacks.consistency_check import ConsistencyCheck
from npu_keras.callbacks.distribution_report import DistributionReport
from npu_keras.callbacks.loss_scale_logger import LossScaleLogger
from npu_keras.callbacks.loss_scale_plot import LossScalePlot
from npu_keras.callbacks.metric_average import MetricAverage
from npu_keras.callbacks.overflow_guard import OverflowGuard
from npu_keras.callbacks.step_limit import StepLimit

__all__ = [
    "BroadcastVariables",
    "ConsistencyCheck",
    "DistributionReport",
    "LossScaleLogger",
    "LossScalePlot",
    "MetricAverage",
    "OverflowGuard",
    "StepLimit",
]
