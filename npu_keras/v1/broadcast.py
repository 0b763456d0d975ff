# SPDX-License-Identifier: Apache-2.0
"""Gives all ranks the values of one, in a graph of `tf.compat.v1`."""

from typing import Any

import tensorflow as tf

from npu_keras import engines
from npu_keras.engines.base import check_root
from npu_keras.engines.lane_order import separate
from npu_keras.startup import take_lanes


def broadcast_global_variables(root_rank: int = 0) -> tf.Operation:
    """Makes an operation that overwrites all global variables with those of one rank.

    Run it after the initializer, or after a checkpoint has been restored. Eagerly, and in a
    `tf.function`, an optimizer does as much by itself.

    Args:
        root_rank: the rank whose values all take.

    Returns:
        The operation; all ranks have to run it.

    Raises:
        RuntimeError: outside of a graph, where there is no list of variables.
        ValueError: if there is no such rank.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "`broadcast_global_variables` belongs to a graph. Eagerly call "
            "`npu_keras.distribute.broadcast(variables)`."
        )
    engine, variables = engines.find(), tf.compat.v1.global_variables()
    check_root(root_rank, engine.size)
    if engine.size == 1 or not variables:
        return tf.no_op()
    lane = take_lanes(engine, 1)
    with separate(f"broadcast {lane} "):
        values = [tf.convert_to_tensor(variable) for variable in variables]
        received = engine.broadcast(
            values, root_rank=root_rank, lane=lane, label="global variables"
        )
    pairs = zip(variables, received, strict=True)
    return tf.group([variable.assign(value, read_value=False) for variable, value in pairs])


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all ranks the global variables of one as soon as the session has been made.

    Args:
        root_rank: the rank whose values all take.

    Example:

    ```python
    hooks = [npu_keras.v1.BroadcastGlobalVariablesHook(0)]
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        session.run(train_op)
    ```
    """

    def __init__(self, root_rank: int = 0) -> None:
        self.root_rank = root_rank
        self._broadcast: Any = None

    def begin(self) -> None:
        """Makes the operation, before the graph is closed."""
        self._broadcast = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the operation in a new session, also in one made after a failure."""
        session.run(self._broadcast)
