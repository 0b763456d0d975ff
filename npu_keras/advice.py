# SPDX-License-Identifier: Apache-2.0
"""What to try when loss scaling does not go well."""

from collections.abc import Sequence

from npu_keras.events import Event
from npu_keras.run_facts import Suspect
from npu_keras.words import counted, name_text, scale_text, share_text

WITHOUT_EVENTS = (
    "If training ran, all is well. Otherwise look whether LossScaleLogger(jsonl=...) was among the "
    "callbacks of fit.",
)
_GRADIENTS = (
    "Look at the loss of the steps before: when it rises, training diverges. Lower the learning "
    "rate, or clip the gradients (global_clipnorm=1.0 on the inner optimizer)."
)


def for_healthy(skips: Sequence[Event]) -> tuple[str, ...]:
    """Returns what to know about a run that needs nothing.

    Args:
        skips: the events of its skipped steps.
    """
    forward = [event.attempt for event in skips if event.forward]
    lines = ["Nothing. A skipped step changes no weight, and overflows are how a scale is found."]
    if forward:
        lines.append(
            f"In {counted(len(forward), 'skipped step')}, last in step {forward[-1]:,}, the loss "
            "itself was not finite: if they are few, look for unusual samples in the data."
        )
    return tuple(lines)


def for_settling(scale: float, skips: Sequence[Event]) -> tuple[str, ...]:
    """Returns what to do about a first scale that was too high.

    Args:
        scale: where the scale has come to.
        skips: the events of the skipped steps.
    """
    return (
        "Let it run: these steps are lost, nothing else is.",
        f"To lose fewer of them next time, start at {scale_text(scale)}: "
        f"ExponentialUpdateLossScaleManager({scale_text(scale)}, ...).",
        *_nan_only(skips),
    )


def for_too_high(
    skips: Sequence[Event], suspects: Sequence[Suspect], moves: bool
) -> tuple[str, ...]:
    """Returns what to do about a scale that overflows again and again.

    Args:
        skips: the events of the skipped steps, the recent ones.
        suspects: the variables that overflowed first.
        moves: whether the scale moves at all.
    """
    lowest = min(event.scale_before for event in skips)
    if moves:
        lines = [
            "Let the scale grow less often: raise incr_every_n_steps; 1000 or 2000 is usual.",
            f"Or give it a ceiling: max_loss_scale={scale_text(lowest / 2)}, half of the lowest "
            "scale that overflowed lately.",
        ]
    else:
        lines = [
            "Let the scale find its level: ExponentialUpdateLossScaleManager in the place of "
            "FixedLossScaleManager.",
            f"Or take a lower one, {scale_text(lowest / 2)} or less.",
        ]
    return (*lines, *_one_variable(suspects), *_nan_only(skips))


def for_falling(skips: Sequence[Event], suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """Returns what to do when a settled scale falls at once.

    Args:
        skips: the events of the steps in which it fell.
        suspects: the variables that overflowed first.
    """
    return (_GRADIENTS, *_one_variable(suspects), *_nan_only(skips))


def for_floor(skips: Sequence[Event], suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """Returns what to do about a scale at its floor.

    Args:
        skips: the events of the steps skipped there.
        suspects: the variables that overflowed first.
    """
    return (
        *_nan_only(skips),
        *_one_variable(suspects),
        _GRADIENTS,
        "If the gradients are this large by nature, as with a loss that is summed instead of "
        "averaged, average it, or lower min_loss_scale.",
    )


def for_forward(skips: Sequence[Event]) -> tuple[str, ...]:
    """Returns what to do about a loss that is not finite.

    Args:
        skips: the events of the steps in which it was not.
    """
    return (
        f"Look at the data of step {skips[0].attempt:,} for NaN, infinities and values beyond "
        "65504, the largest number of float16.",
        "Compute the last layers and the loss in float32: Dense(..., dtype='float32').",
        "tf.debugging.enable_check_numerics() before the model is built stops at the first "
        "operation that is not finite, and names it.",
    )


def _one_variable(suspects: Sequence[Suspect]) -> tuple[str, ...]:
    total = sum(suspect.steps for suspect in suspects)
    alone = max(suspects, key=lambda suspect: suspect.alone, default=None)
    if alone is not None and 2 * alone.alone > total:
        return (
            f"{name_text(alone.variable)} overflowed alone in {share_text(alone.alone, total)} of "
            "the skipped steps: compute its layer in float32 (dtype='float32'), or look at its "
            "initialiser.",
        )
    if suspects and 2 * sum(suspect.alone for suspect in suspects) <= total:
        return (
            "In most of the skipped steps several variables overflowed, which begins in a late "
            "layer or in the loss and goes on to all layers before: "
            "optimizer.journal.overflows_by_variable() counts every one.",
        )
    return ()


def _nan_only(skips: Sequence[Event]) -> tuple[str, ...]:
    if any(event.infs for event in skips) or not any(event.nans for event in skips):
        return ()
    return (
        "The gradients hold NaN but no infinity, which a scale that is too high would bring too: "
        "look for 0/0, log(0) or the square root of 0 in the model.",
    )
