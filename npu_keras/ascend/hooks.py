# SPDX-License-Identifier: Apache-2.0
"""The broadcast of initial variables, as a hook and as a callback, under the adapter's names."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from npu_keras.callbacks import BroadcastVariables
from npu_keras.v1 import BroadcastGlobalVariablesHook, broadcast_global_variables


class NPUBroadcastGlobalVariablesHook(BroadcastGlobalVariablesHook):
    """Gives all ranks the global variables of one, once the session exists.

    As its name says: slots, batch-normalisation statistics and the loss scale too, where the
    adapter's hook broadcasts the trainable variables alone.

    Args:
        root_rank: the rank whose values all take; 0 by default.
        index: the rank of this process; known anyway.
    """

    def __init__(self, root_rank: int | None = None, index: int | None = None) -> None:
        super().__init__(root_rank or 0)


class NPUBroadcastGlobalVariablesCallback(BroadcastVariables):
    """Gives all ranks the variables of one, before the first batch of `fit`.

    The adapter's callback for TensorFlow 2 does nothing; this one does what its name says.

    Args:
        root_rank: the rank whose values all take.
    """

    def _broadcast(self) -> None:
        if self._done or tf.executing_eagerly():
            super()._broadcast()
            return
        self._done = True
        session = tf.compat.v1.keras.backend.get_session()
        _initialize_missing(session)
        session.run(broadcast_global_variables(self.root_rank))


def _initialize_missing(session: Any) -> None:
    """Initializes what Keras has not: it knows the variables of its own layers and optimizers."""
    variables = tf.compat.v1.global_variables()
    known = session.run([tf.compat.v1.is_variable_initialized(v) for v in variables])
    missing = [v for v, is_known in zip(variables, known, strict=True) if not is_known]
    session.run([variable.initializer for variable in missing])


def npu_hooks_append(hooks_list: Iterable[Any] = ()) -> list[Any]:
    """Returns the hooks and one that broadcasts; those of a tuple are not lost."""
    return _appended(hooks_list, NPUBroadcastGlobalVariablesHook(0))


def npu_callbacks_append(callbacks_list: Iterable[Any] = ()) -> list[Any]:
    """Returns the callbacks and one that broadcasts; those of a tuple are not lost."""
    return _appended(callbacks_list, NPUBroadcastGlobalVariablesCallback(0))


def _appended(given: Any, more: Any) -> list[Any]:
    if isinstance(given, list):  # scripts may go on with the list they gave
        given.append(more)
        return given
    return [*(given or ()), more]
