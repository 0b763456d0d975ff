# SPDX-License-Identifier: Apache-2.0
"""What a forward pass writes, and a skipped step has to put back."""

from typing import Any

from npu_keras._upstream import (
    has_own_train_step,
    layers_of,
    loss_average,
    own_non_trainable_variables,
    seed_states,
)

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
        model: a built and compiled Keras 3 model.
    """
    variables = []
    for layer in layers_of(model):
        variables += [v for v in own_non_trainable_variables(layer) if v.dtype not in QUANTIZED]
        variables += seed_states(layer)
    if not has_own_train_step(model):
        variables += loss_average(model)
    return variables
