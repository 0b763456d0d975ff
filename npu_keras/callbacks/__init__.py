# SPDX-License-Identifier: Apache-2.0
"""Callbacks that show what loss scaling does during `fit`, and keep ranks together."""

from npu_keras.callbacks.broadcast_variables import BroadcastVariables
from npu_keras.callbacks.loss_scale_logger import LossScaleLogger
from npu_keras.callbacks.metric_average import MetricAverage
from npu_keras.callbacks.step_limit import StepLimit

__all__ = ["BroadcastVariables", "LossScaleLogger", "MetricAverage", "StepLimit"]
