# SPDX-License-Identifier: Apache-2.0
"""`npu_device`: its device, its options and its switches, where there is no such device."""

import contextlib
from collections.abc import Callable
from typing import Any

from npu_keras.ascend.hardware import Options, warn_once


class Device:
    """What `open` returns: training stays on TensorFlow's own devices."""

    def as_default(self) -> "Device":
        """Changes nothing."""
        return self

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that changes nothing."""
        return contextlib.nullcontext()


def open(device_id: int | None = None) -> Device:
    """Opens no device: TensorFlow goes on with the CPU or GPU it would choose without it.

    Args:
        device_id: number of an NPU.
    """
    return Device()


_options = Options("npu_device.global_options()")


def global_options() -> Options:
    """Returns the options of the hardware: any can be set, and is reported once."""
    return _options


def enable_v1() -> None:
    """Does nothing: sessions of `tf.compat.v1` work here as they are."""


def npu_compat_function(func: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    """Is `tf.function`."""
    import tensorflow as tf

    return tf.function(func, *args, **kwargs)


def set_npu_loop_size(loop_size: int) -> None:
    """Has no effect: every step is one of TensorFlow's."""
    if loop_size != 1:
        warn_once("set_npu_loop_size()")


def set_device_sat_mode(mode: int) -> None:
    """Has no effect: this machine follows IEEE 754. See `npu_keras.ascend.saturating`.

    Args:
        mode: 0 for saturation, 1 for INF/NaN.

    Raises:
        ValueError: for another mode, which the adapter takes without a word.
    """
    if mode not in (0, 1):
        raise ValueError(f"Expected 0 (saturation) or 1 (INF/NaN). Received: mode={mode!r}")
    if mode == 0:
        warn_once("set_device_sat_mode(0)", "only hardware saturates")
