# SPDX-License-Identifier: Apache-2.0
"""How a loss scale moves: pure state machines that need no framework.

A manager is immutable configuration; the numbers that move are a `ScaleState`, which an optimizer
keeps in variables. The same transition runs on numpy scalars, TensorFlow tensors and Keras tensors.
"""

from math import inf
from typing import Any

import numpy as np

from npu_keras._arguments import FLOAT32_MAX, float32_number, step_count
from npu_keras._loss_scale_base import LossScaleManager, ScaleState, count_step
from npu_keras._stateless_manager import StatelessManager

__all__ = [
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "LossScaleManager",
    "ScaleState",
]


class FixedLossScaleManager(StatelessManager):
    """Keeps the loss scale; a step with an overflow is skipped.

    ```
    on a finite step:
        good_steps += 1
    on an overflow, if overflow is checked:
        skip the update
        bad_steps += 1; good_steps = 0
    ```

    Args:
        loss_scale: Number of at least 1, finite in float32.
        enable_overflow_check: If False, no gradient is checked and every update is applied, even
            with inf or NaN in it; for models in which an overflow is known to do no harm.

    Raises:
        TypeError: If `loss_scale` is not a number or `enable_overflow_check` is not a bool.
        ValueError: If `loss_scale` is below 1 or not finite in float32.

    Example:

    >>> manager = FixedLossScaleManager(1024)
    >>> manager.get_loss_scale()
    np.float32(1024.0)
    """

    _fields = ("loss_scale", "enable_overflow_check")

    def __init__(self, loss_scale: float, enable_overflow_check: bool = True) -> None:
        if not isinstance(enable_overflow_check, bool | np.bool_):
            raise TypeError(
                "`enable_overflow_check` must be a bool. "
                f"Received: enable_overflow_check={enable_overflow_check!r}"
            )
        self.loss_scale = float32_number("loss_scale", loss_scale, low=1.0)
        self.enable_overflow_check = bool(enable_overflow_check)

    def next_state(self, state: ScaleState, finite: Any, xp: Any) -> ScaleState:
        """Return the state after a step: the counters move, the loss scale does not."""
        return ScaleState(state.loss_scale, *count_step(state, finite, xp))


class ExponentialUpdateLossScaleManager(StatelessManager):
    """Raises the loss scale after good steps in a row, lowers it after overflows.

    ```
    on a finite step:
        good_steps += 1
        if good_steps >= incr_every_n_steps:
            loss_scale = min(loss_scale * incr_ratio, max_loss_scale)
            good_steps = bad_steps = 0
    on an overflow:
        skip the update
        bad_steps += 1; good_steps = 0
        if bad_steps >= decr_every_n_nan_or_inf:
            loss_scale = max(loss_scale * decr_ratio, min_loss_scale)
            bad_steps = 0
    ```

    Good steps must be consecutive, bad steps add up. Without `max_loss_scale`, a growth beyond the
    largest float32 leaves the scale as it is and clears the counters all the same. All arithmetic
    is float32. A scale that was set beyond a bound returns within bounds at its next change.

    The rule is that of `ExponentialUpdateLossScaleManager` in TensorFlow 1.15
    (`tf.contrib.mixed_precision`), with a choice of bounds; its idea is from Micikevicius et al.,
    "Mixed Precision Training", 2018.

    Args:
        init_loss_scale: Loss scale of the first step, between the bounds.
        incr_every_n_steps: Finite steps in a row before the scale grows, at least 1.
        decr_every_n_nan_or_inf: Steps with an overflow before the scale falls, at least 1.
        incr_ratio: Factor of a growth, above 1.
        decr_ratio: Factor of a fall, between 0 and 1.
        min_loss_scale: Lower bound, at least 2**-126, the smallest normal float32.
        max_loss_scale: Upper bound, or None for the largest float32.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of its range in float32.

    Example:

    >>> manager = ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=1000, decr_ratio=0.5)
    >>> manager.next_state(manager.initial_state(), True, numpy).good_steps
    np.int32(1)
    """

    _fields = (
        "init_loss_scale",
        "incr_every_n_steps",
        "decr_every_n_nan_or_inf",
        "incr_ratio",
        "decr_ratio",
        "min_loss_scale",
        "max_loss_scale",
    )
    min_loss_scale: float

    def __init__(
        self,
        init_loss_scale: float,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int = 2,
        incr_ratio: float = 2,
        decr_ratio: float = 0.8,
        *,
        min_loss_scale: float = 1.0,
        max_loss_scale: float | None = None,
    ) -> None:
        bounds = "The bounds are `min_loss_scale` and `max_loss_scale`."
        floor = float32_number("min_loss_scale", min_loss_scale)
        ceiling = FLOAT32_MAX
        if max_loss_scale is not None:
            max_loss_scale = ceiling = float32_number(
                "max_loss_scale", max_loss_scale, low=floor, hint=bounds
            )
        self.init_loss_scale = float32_number(
            "init_loss_scale", init_loss_scale, low=floor, high=ceiling, hint=bounds
        )
        self.incr_every_n_steps = step_count("incr_every_n_steps", incr_every_n_steps)
        self.decr_every_n_nan_or_inf = step_count(
            "decr_every_n_nan_or_inf", decr_every_n_nan_or_inf
        )
        self.incr_ratio = float32_number("incr_ratio", incr_ratio, 1.0, inf, inclusive=False)
        self.decr_ratio = float32_number("decr_ratio", decr_ratio, 0.0, 1.0, inclusive=False)
        self.min_loss_scale = floor
        self.max_loss_scale = max_loss_scale
        self._floor, self._ceiling = np.float32(floor), np.float32(ceiling)
        self._incr, self._decr = (
            np.float32(self.incr_ratio),
            np.float32(self.decr_ratio),
        )
        self._growable = _largest_growable(self._incr)

    def next_state(self, state: ScaleState, finite: Any, xp: Any) -> ScaleState:
        """Return the state after a step, by the rule of the class."""
        good, bad = count_step(state, finite, xp)
        moves = xp.where(
            finite, good >= self.incr_every_n_steps, bad >= self.decr_every_n_nan_or_inf
        )
        # `good * 0` and not 0: a zero of the counter's own dtype in every framework.
        return ScaleState(
            xp.where(moves, self._moved(state.loss_scale, finite, xp), state.loss_scale),
            xp.where(moves, good * 0, good),
            xp.where(moves, bad * 0, bad),
        )

    def _moved(self, scale: Any, finite: Any, xp: Any) -> Any:
        beyond = scale if self.max_loss_scale is None else self._ceiling
        grown = xp.minimum(scale, self._growable) * self._incr
        grown = xp.where(scale <= self._growable, grown, beyond)
        moved = xp.where(finite, grown, scale * self._decr)
        return xp.maximum(xp.minimum(moved, self._ceiling), self._floor)


def _largest_growable(ratio: np.float32) -> np.float32:
    """Return the largest float32 whose float32 product with `ratio` is finite."""
    limit = np.float32(FLOAT32_MAX) / ratio  # rounded to nearest: right, or one float too high
    with np.errstate(over="ignore"):
        return limit if np.isfinite(limit * ratio) else np.nextafter(limit, np.float32(0))
