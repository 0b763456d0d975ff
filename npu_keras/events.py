# SPDX-License-Identifier: Apache-2.0
"""What can happen in a step, as values that need no framework."""

from typing import NamedTuple

SKIP, GROW, BACK_OFF = "skip", "grow", "back off"
KINDS = (SKIP, GROW, BACK_OFF)


class Event(NamedTuple):
    """One step in which something happened.

    Attributes:
        attempt: which attempted step it was, counted from 1 (applied + skipped).
        kind: `"skip"` (overflow, the scale stays), `"back off"` (overflow, the scale was lowered)
            or `"grow"` (the scale was raised). Both `"skip"` and `"back off"` skipped the update.
        scale_before: the loss scale the step's loss was multiplied by.
        scale_after: the loss scale of the next step.
        bad_variables: how many variables had a gradient with an overflow.
        variable: path of the first of them, or None.
        infs: infinite (in saturation mode: saturated) elements over all gradients.
        nans: NaN elements over all gradients.
        forward: True when the loss itself was not finite, which no loss scale can cure.
        bad_steps: overflows counted towards the next back-off, this one included.
        rank: the rank or replica that overflowed; None when the step ran on one device.
    """

    attempt: int
    kind: str
    scale_before: float
    scale_after: float
    bad_variables: int = 0
    variable: str | None = None
    infs: int = 0
    nans: int = 0
    forward: bool = False
    bad_steps: int = 0
    rank: int | None = None

    @property
    def skipped(self) -> bool:
        """Whether the step's update was skipped."""
        return self.kind != GROW


class Snapshot(NamedTuple):
    """The cumulative counters at one moment."""

    loss_scale: float
    good_steps: int
    bad_steps: int
    attempted_steps: int
    skipped_steps: int
    scale_growths: int
    scale_backoffs: int
