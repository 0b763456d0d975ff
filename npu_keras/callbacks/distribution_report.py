# SPDX-License-Identifier: Apache-2.0
"""Which loss scale suits the gradients, and which layer does not suit any."""

from typing import Any

from npu_keras.callbacks.base import Callback
from npu_keras.callbacks.scaled import require_loss_scaled
from npu_keras.distribution import GradientObserver
from npu_keras.gradient_range import GradientRange
from npu_keras.range_report import records, summary


class DistributionReport(Callback):
    """Measures during training how large the gradients of each variable are.

    They are counted by powers of two and set against what float16 can hold: what the loss scale
    brings to less than 2**-24 becomes 0, what it brings near 65504 overflows. From this follows
    which scales would do, and for which layer none does. A model that trains in float32 tells what
    would happen in float16; one that computes in float16 has already lost what became 0, which is
    counted apart, with all other zeros.

    Each rank looks at its own gradients, before they are aggregated; replicas are added up. The
    counting stands in the training step, so the step is traced anew when training begins; in most
    steps it costs a comparison, in every n-th about 15 ns an element on a CPU. Steps that are
    skipped count too.

    It adds no key to the logs.

    Args:
        every: looks at each attempted step whose number, from 0, is a multiple of this; at least 1.

    Raises:
        ValueError: for another `every`; at the begin of training, if the model's optimizer is not
            one of this package or the model has no weights yet.
        RuntimeError: by the methods below, before the first training.

    Example:

    ```python
    report = npu_keras.callbacks.DistributionReport(every=20)
    model.fit(x, y, callbacks=[report])
    print(report.summary())
    ```
    """

    def __init__(self, every: int = 100) -> None:
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(
                f"`every` must be a number of steps of at least 1. Received: every={every!r}"
            )
        self.every = every

    _optimizer: Any
    _observer: GradientObserver | None = None
    _final: GradientRange | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the counting into the training step."""
        self._optimizer = require_loss_scaled(self.model, type(self).__name__)
        if not self.model.built:
            raise ValueError(
                "DistributionReport needs a model that has its weights before training begins. "
                f"Received: {self.model!r}, which has none yet. Begin the model with an `Input`, "
                "or call `model.build(input_shape)`."
            )
        if not self._optimizer.built:
            self._optimizer.build(self.model.trainable_variables)
        self._final = None
        names, trained = self._optimizer._variable_paths(), self._optimizer._trained_variables()
        self._observer = GradientObserver(names, trained, self.every)
        self._observe(self._observer)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Takes the counting out of the training step again."""
        self._final = self.result()
        self._observe(None)

    def result(self) -> GradientRange:
        """Returns the counts: those of the last training, or of the present one so far.

        `npu_keras.plotting.plot_gradient_range` draws them.
        """
        if self._final is not None:
            return self._final
        if self._observer is None:
            raise RuntimeError(
                "DistributionReport has seen no training yet. Give it to `fit` in `callbacks`."
            )
        return self._observer.read(self._optimizer.journal.snapshot().loss_scale)

    def to_records(self) -> list[dict[str, Any]]:
        """Returns one dict per variable, for `pandas.DataFrame`; see `npu_keras.range_report`."""
        return records(self.result())

    def summary(self) -> str:
        """Returns a few lines: the scales that would do, and the variables that stand out."""
        return summary(self.result())

    def _observe(self, observer: GradientObserver | None) -> None:
        self._optimizer.observe(observer)
        self.model.make_train_function(force=True)
