# SPDX-License-Identifier: Apache-2.0
"""What a forward pass writes, and a skipped step has to put back."""

import math
from typing import Any

from npu_keras.callbacks.host_model import internals
from npu_keras.events import Snapshot

QUANTIZED = ("int8", "uint8")


def forward_state(model: Any) -> list[Any]:
    """Returns the variables that a training step writes before the gradients exist.

    These are the statistics of normalisation layers and other variables that a layer made as
    non-trainable, the states of random generators, and the running mean of the loss. Not among
    them: weights of frozen layers and quantized kernels, which nobody writes, and compiled metrics,
    which are updated after the optimizer's step.

    A `train_step` of the user's own may update the running loss after the step too, so there it
    is left out.

    Args:
        model: a built and compiled Keras 3 or tf_keras model.
    """
    known = internals(model)
    variables: list[Any] = []
    for layer in known.layers_of(model):
        own = known.own_non_trainable_variables(layer)
        variables += [v for v in own if v.dtype not in QUANTIZED]
        variables += known.seed_states(layer)
    if not known.has_own_train_step(model):
        variables += known.loss_average(model)
    return variables


def protect_forward_state(model: Any) -> None:
    """Lets skipped steps of the model's optimizer put back what the forward pass has written.

    To be called at the begin of every epoch, when the host has reset the running loss.

    Args:
        model: a model compiled with an optimizer of this package.
    """
    optimizer = model.optimizer
    if not optimizer.loss_scale_manager.enable_overflow_check:
        return
    if optimizer.protect(forward_state(model)):
        model.make_train_function(force=True)


def correct_loss(logs: dict[str, Any] | None, before: Snapshot, now: Snapshot) -> None:
    """Makes the loss of an epoch NaN in which every step was skipped.

    It is an average of nothing then, which Keras shows as a perfect 0.

    Args:
        logs: those of the epoch, changed in place.
        before: the counters at its begin.
        now: the counters at its end.
    """
    attempted = now.attempted_steps - before.attempted_steps
    if logs and "loss" in logs and 0 < attempted == now.skipped_steps - before.skipped_steps:
        logs["loss"] = math.nan
