# SPDX-License-Identifier: Apache-2.0
"""The same weights and optimizer state on all ranks when training begins."""

from typing import Any

from npu_keras import distribute
from npu_keras.callbacks.base import Callback
from npu_keras.callbacks.host_model import optimizer_variables
from npu_keras.startup import require_same_everywhere


class BroadcastVariables(Callback):
    """Gives every rank the weights and the optimizer state of one rank when training begins.

    A distributed optimizer of this package does the same with rank 0 before its first step. Use
    this callback where another rank has what all shall have, where weights that the optimizer does
    not train matter (the statistics of `BatchNormalization`), or with `broadcast_initial=False`.

    Overwritten are `model.weights` and the optimizer's variables: slots, counters, learning rate,
    loss scale and journal. Not overwritten are the states of random generators and metrics, which
    are each rank's own, and with `is_weight_update_sharding=True` the slots that only their owner
    has. Put it after callbacks that load weights when training begins. One rank alone does nothing.

    It adds no key to the logs.

    Args:
        root_rank: the rank whose values all take, from 0 to the number of ranks - 1.

    Raises:
        ValueError: for what is no rank; at the begin of training, if there is no such rank, or at
            the first batch if the model has no weights yet.
        RuntimeError: on every rank, if the models of the ranks differ; names the first variable.
        EngineTimeout: if a rank is missing.

    Example:

    ```python
    if npu_keras.distribute.rank() == 0:
        model.load_weights("pretrained.weights.h5")
    model.fit(dataset, callbacks=[npu_keras.callbacks.BroadcastVariables()])
    ```
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        if isinstance(root_rank, bool) or not isinstance(root_rank, int) or root_rank < 0:
            raise ValueError(f"`root_rank` must be a rank, from 0 on. Received: {root_rank=}")
        self.root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts, if the model has its weights already."""
        self._done = distribute.size() == 1
        if self.model.built:
            self._broadcast()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts, if that is still to be done."""
        if not self._done and not self.model.built:
            raise ValueError(
                "BroadcastVariables needs a model that has its weights before the first batch. "
                f"Received: {self.model!r}, which has none yet. Begin the model with a "
                "`keras.Input`, or call `model.build(input_shape)`."
            )
        self._broadcast()

    def _broadcast(self) -> None:
        if self._done:
            return
        variables = [*self.model.weights, *optimizer_variables(self.model)]
        require_same_everywhere(distribute.engine(), variables, {"root_rank": self.root_rank})
        distribute.broadcast(variables, root_rank=self.root_rank)
        self._done = True
