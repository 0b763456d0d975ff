# SPDX-License-Identifier: Apache-2.0
"""The loss scale as a picture that follows the training in a notebook."""

import importlib.util
import io
import logging
import sys
import time
from typing import Any

from npu_keras.callbacks.base import Callback
from npu_keras.callbacks.scaled import require_loss_scaled, speaks_for_all

SHARE = 0.02
"""At most this share of the training time goes into pictures."""

DPI = 90

_logger = logging.getLogger("npu_keras")


class LossScalePlot(Callback):
    """Draws the loss scale in a notebook while the model trains, as one picture that is updated.

    The picture is that of `npu_keras.plotting.plot_loss_scale`, and has a place of its own in the
    output of the cell, so that the progress bar and what else is printed stay. It is drawn before
    the first step, then every `every_s` seconds, less often where that would take more than 2 % of
    the time since the first step, and once more when training has ended.

    Outside of a notebook, without matplotlib, and on ranks other than 0 it draws nothing; the first
    two are said by one INFO line of the logger `"npu_keras"`.

    It adds no key to the logs.

    Args:
        every_s: seconds between two pictures, above 0.

    Raises:
        ValueError: for another `every_s`; at the begin of training, if the model's optimizer does
            not scale the loss by this package.

    Example:

    ```python
    model.fit(x, y, epochs=5, callbacks=[npu_keras.callbacks.LossScalePlot()])
    ```
    """

    def __init__(self, every_s: float = 2) -> None:
        super().__init__()
        if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not every_s > 0:
            raise ValueError(f"`every_s` must be a number of seconds above 0. Received: {every_s=}")
        self.every_s = every_s

    _optimizer: Any
    _display: Any
    _draws: bool
    _begin: float
    _last: float
    _took: float
    _spent: float

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Draws the first picture, and learns how long one takes."""
        self._optimizer = require_loss_scaled(self.model, type(self).__name__)
        self._display = None
        obstacle = _obstacle()
        if obstacle is not None:
            _logger.info("LossScalePlot draws nothing: %s", obstacle)
        self._draws = obstacle is None and speaks_for_all(self._optimizer)
        if self._draws:
            self._render()  # loads matplotlib, which would count as the time of a picture
            self._draw()
        self._begin = self._last = time.monotonic()
        self._spent = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Draws, if it is time to and there is time for it."""
        if self._draws and self._is_due(time.monotonic()):
            self._draw()
            self._spent += self._took

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Draws the last picture."""
        if self._draws:
            self._draw()

    def _is_due(self, now: float) -> bool:
        if now - self._last < self.every_s:
            return False
        return self._spent + self._took <= SHARE * (now - self._begin)

    def _draw(self) -> None:
        from IPython.display import Image, display

        began = time.monotonic()
        image = Image(data=self._render(), format="png")
        if self._display is None:
            self._display = display(image, display_id=True)
        else:
            self._display.update(image)
        self._last = time.monotonic()
        self._took = self._last - began

    def _render(self) -> bytes:
        from npu_keras.plotting import plot_loss_scale

        file = io.BytesIO()
        plot_loss_scale(self._optimizer).savefig(file, format="png", dpi=DPI)
        return file.getvalue()


def _obstacle() -> str | None:
    """Returns why nothing can be drawn here, or None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return "this is no notebook."
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed (`pip install 'npu-keras[plot]'`)."
    return None
