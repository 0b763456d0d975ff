# SPDX-License-Identifier: Apache-2.0
"""How the update of a step is run, so that a skipped one leaves no trace and costs little.

- *Branched*: a conditional around the update. Right everywhere.
- *Called*: the same for many small variables, with branches that stay functions of their own. Where
  they become part of the step's graph, as is usual, every weight, slot and gradient passes through
  an operation for it.
- *Fused*: a conditional, with unscaling and the host's update compiled by XLA into one cluster. An
  update is some ten passes over the weights when it is made of single operations, and one pass
  when it is fused.
- *Masked*: inside XLA, where a conditional copies every weight and slot, each write of the update
  keeps the old value in a skipped step.

All give the same weights; fused, called and other ones differ by rounding, for TensorFlow rewrites
operations of a step's graph (a division by a root, for one) and not those of called functions.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from npu_keras._arguments import is_whole
from npu_keras._upstream import in_xla, keeps_order
from npu_keras._upstream_compilation import call_branches, unknown_to_xla
from npu_keras.channels import GradientList
from npu_keras.masking import masked
from npu_keras.ordering import branch
from npu_keras.sparse import Gradient
from npu_keras.state import native

logger = logging.getLogger("npu_keras")

MIN_BYTES = 2**22
"""Gradients of fewer bytes stay in the caches, where single operations are as fast."""

MANY_VARIABLES = 64
"""With more variables than that, the least size grows with their number."""

_min_bytes: list[int | None] = [MIN_BYTES]

UnscaledUpdate = Callable[[list[Gradient], tf.Tensor], None]
"""Takes scaled gradients and the float32 loss scale, and updates their variables."""


def set_fused_update_min_bytes(min_bytes: int | None = MIN_BYTES) -> None:
    """Sets from how many bytes of gradients on the update of the weights is fused by XLA.

    A fused update reads and writes weights and slots once instead of some ten times. It takes a
    moment to compile in the first step, and rounds differently in the last digit. It counts for
    steps that are traced from now on, in a `tf.function` (as `fit` does) and on one device.

    Args:
        min_bytes: size of the dense gradients of one step in bytes, where there are at most 64 of
            them; of n gradients, n / 64 times as much. None to fuse nothing. By default 4 MiB.

    Raises:
        ValueError: for anything but a whole number from 0 on, or None.

    Example:

    ```python
    npu_keras.set_fused_update_min_bytes(None)  # every operation of the update by itself
    ```
    """
    if min_bytes is not None and not (is_whole(min_bytes) and min_bytes >= 0):
        raise ValueError(
            "`min_bytes` must be a number of bytes from 0 on, or None to fuse nothing. "
            f"Received: min_bytes={min_bytes!r}"
        )
    _min_bytes[:] = [min_bytes]


class Execution(Protocol):
    """Runs the two outcomes of a step."""

    def parts(self, sent: GradientList) -> list[list[int]]:
        """Returns the entries of `sent` that are updated together, in order."""

    def either(
        self, finite: tf.Tensor, apply: Callable[[], Any], skip: Callable[[], Any]
    ) -> tf.Operation | None:
        """Makes the effects of `apply` happen in a finite step, those of `skip` otherwise.

        Returns:
            Where it matters, the operation that all effects are reached by.
        """

    def update(self, update: UnscaledUpdate, gradients: list[Gradient], scale: tf.Tensor) -> None:
        """Calls `update(gradients, scale)`."""


class Branched:
    """A conditional around the host's update."""

    def parts(self, sent: GradientList) -> list[list[int]]:
        """Returns all entries as one part."""
        return [list(range(len(sent.gradients)))]

    def either(
        self, finite: tf.Tensor, apply: Callable[[], Any], skip: Callable[[], Any]
    ) -> tf.Operation | None:
        """Makes the effects of `apply` happen in a finite step, those of `skip` otherwise."""
        applied = tf.cond(finite, branch(apply, True), branch(skip, False))
        return None if keeps_order() else tf.group(applied)

    def update(self, update: UnscaledUpdate, gradients: list[Gradient], scale: tf.Tensor) -> None:
        """Calls `update(gradients, scale)`."""
        update(gradients, scale)


BRANCHED = Branched()


class Called(Branched):
    """A conditional that calls its branches, which run on one device as a whole."""

    def either(
        self, finite: tf.Tensor, apply: Callable[[], Any], skip: Callable[[], Any]
    ) -> tf.Operation | None:
        """Makes the effects of `apply` happen in a finite step, those of `skip` otherwise."""
        call_branches(tf.cond(finite, branch(apply, True), branch(skip, False)))
        return None


CALLED = Called()


class Fused(Branched):
    """A conditional around unscaling and update in one cluster; sparse gradients stay outside.

    Args:
        device_type: of the variables, such as `"CPU"`.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def parts(self, sent: GradientList) -> list[list[int]]:
        """Returns the entries of the dense gradients, then those of the sparse ones."""
        dense = [i for i, g in enumerate(sent.gradients) if not isinstance(g, tf.IndexedSlices)]
        sparse = [i for i, g in enumerate(sent.gradients) if isinstance(g, tf.IndexedSlices)]
        return [part for part in (dense, sparse) if part]

    def update(self, update: UnscaledUpdate, gradients: list[Gradient], scale: tf.Tensor) -> None:
        """Calls `update(gradients, scale)`, compiled if XLA knows all of its operations."""
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            update(gradients, scale)
            return
        cluster = tf.function(update, jit_compile=True, autograph=False)
        traced = cluster.get_concrete_function(gradients, scale)
        unknown = unknown_to_xla(traced.graph, self._device_type)
        if unknown:
            logger.debug("The update is not fused: XLA cannot compile %s", ", ".join(unknown))
            update(gradients, scale)
        else:
            traced(*gradients, scale)


class Masked(Branched):
    """Inside XLA: every write keeps the old value in the other outcome.

    Args:
        variables: all that either outcome writes.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = variables

    def either(
        self, finite: tf.Tensor, apply: Callable[[], Any], skip: Callable[[], Any]
    ) -> tf.Operation | None:
        """Makes the effects of `apply` happen in a finite step, those of `skip` otherwise."""
        with masked(self._variables, finite):
            apply()
        with masked(self._variables, tf.logical_not(finite)):
            skip()
        return None


class Compilation(NamedTuple):
    """What has to be known of a host's update before it may be compiled.

    Attributes:
        obstacle: why it can be neither fused nor masked, or None.
        by_methods: whether it is known to write variables by their methods alone.
        by_parts: whether some variables may be updated before others.
        variables: gives all variables that a step may write.
    """

    obstacle: str | None
    by_methods: bool
    by_parts: bool
    variables: Callable[[], Sequence[Any]]


NOT_COMPILED = Compilation("the host's optimizer cannot be compiled", False, False, list)


def execution_of(compilation: Compilation, gradients: Sequence[Gradient]) -> Execution:
    """Decides how a step is run here; one DEBUG line says why it is not fused.

    Args:
        compilation: what is known of the host's update.
        gradients: one for each variable to be updated.
    """
    if tf.executing_eagerly() or not keeps_order() or tf.distribute.has_strategy():
        return BRANCHED
    if in_xla():
        masks = compilation.obstacle is None and compilation.by_methods
        return Masked([native(v) for v in compilation.variables()]) if masks else BRANCHED
    devices = {native(variable).device for variable in compilation.variables()}
    obstacle = compilation.obstacle or _obstacle(compilation, gradients, devices)
    if obstacle is None:
        return Fused(tf.DeviceSpec.from_string(devices.pop()).device_type or "CPU")
    logger.debug("The update is not fused: %s", obstacle)
    # Called branches keep all they are given to the end, which matters for large gradients.
    size, times = _dense_bytes(gradients)
    small = compilation.obstacle is None and times > 1 and size < MIN_BYTES * times
    return CALLED if small and len(devices) == 1 and _has_only_cpus() else BRANCHED


@functools.cache
def _has_only_cpus() -> bool:
    return {device.device_type for device in tf.config.list_logical_devices()} == {"CPU"}


def _dense_bytes(gradients: Sequence[Gradient]) -> tuple[int, float]:
    """The size of dense gradients, and how many times the least size they would have to be of.

    A cluster takes time to compile for each variable, so that many small ones are not worth it.
    """
    dense = [g for g in gradients if not isinstance(g, tf.IndexedSlices)]
    size = sum((g.shape.num_elements() or 0) * g.dtype.size for g in dense)
    return size, max(1.0, len(dense) / MANY_VARIABLES)


def _obstacle(
    compilation: Compilation, gradients: Sequence[Gradient], devices: set[str]
) -> str | None:
    dense = [g for g in gradients if not isinstance(g, tf.IndexedSlices)]
    size, times = _dense_bytes(gradients)
    (least,) = _min_bytes
    if least is None:
        return "it has been turned off"
    if size < least * times:
        return (
            f"{size} bytes in {len(dense)} dense gradients, and it is done from "
            f"{round(least * times)} on"
        )
    if len(dense) < len(gradients) and not compilation.by_parts:
        return "some gradients are sparse, and the update takes all at once"
    if len(devices) > 1:
        return f"the variables are on several devices: {', '.join(sorted(devices))}"
    return None
