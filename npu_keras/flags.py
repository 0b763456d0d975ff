# SPDX-License-Identifier: Apache-2.0
"""What the flags of `NPUOptimizer` mean, for every flavour of it."""

import logging
import warnings

from npu_keras.aggregation import GradientAggregation, settings_of
from npu_keras.loss_scale import LossScaleManager
from npu_keras.run_config import check_tailing
from npu_keras.scaling import require_manager

logger = logging.getLogger("npu_keras")


def manager_in_force(
    manager: LossScaleManager | None, is_loss_scale: bool
) -> LossScaleManager | None:
    """Returns the manager that scales the loss, or None without `is_loss_scale`.

    Raises:
        ValueError: if there is none although there should be.
    """
    if is_loss_scale and manager is None:
        raise ValueError(
            "`is_loss_scale=True` needs a `loss_scale_manager`, for example "
            "`ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=2000)`. "
            "Received: loss_scale_manager=None"
        )
    if is_loss_scale:
        return require_manager(manager)
    if manager is not None:
        warnings.warn(
            "`loss_scale_manager` has no effect without `is_loss_scale=True`.", stacklevel=3
        )
    return None


def aggregation_in_force(
    aggregation: GradientAggregation | None, is_distributed: bool
) -> GradientAggregation | None:
    """Returns the settings by which gradients are aggregated, or None without `is_distributed`.

    Raises:
        ValueError: for settings that have no effect.
    """
    if is_distributed:
        return settings_of(aggregation)
    if aggregation is not None:
        raise ValueError("`aggregation` has no effect without `is_distributed=True`.")
    return None


def tail_in_force(is_tailing_optimization: bool, is_distributed: bool) -> bool:
    """Returns whether the last part of the aggregation may overlap the update.

    Raises:
        ValueError: if `NPURunConfig` says otherwise.
    """
    check_tailing(is_tailing_optimization)
    if is_tailing_optimization and not is_distributed:
        logger.info("is_tailing_optimization is ignored without is_distributed=True")
    return is_tailing_optimization and is_distributed
