# SPDX-License-Identifier: Apache-2.0
"""Callbacks that show what loss scaling does during `fit`."""

from npu_keras.callbacks.loss_scale_logger import LossScaleLogger

__all__ = ["LossScaleLogger"]
