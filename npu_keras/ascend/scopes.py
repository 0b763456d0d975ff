# SPDX-License-Identifier: Apache-2.0
"""`npu_scope`: contexts that tell the hardware's compiler something about the ops made in them."""

import contextlib

from npu_keras.ascend.hardware import warn_once


def without_npu_compile_scope() -> contextlib.AbstractContextManager[None]:
    """Changes nothing: all ops run on TensorFlow's own devices."""
    return contextlib.nullcontext()


def keep_dtype_scope() -> contextlib.AbstractContextManager[None]:
    """Changes nothing: ops compute in the dtypes they are written in."""
    warn_once("keep_dtype_scope()", "no op changes its dtype")
    return contextlib.nullcontext()
