# SPDX-License-Identifier: Apache-2.0
"""Sessions and their configurations, as scripts for Ascend make them."""

from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from npu_keras.ascend.hardware import warn_once


def npu_config_proto(config_proto: Any = None) -> Any:
    """Returns a session configuration with remapping and JIT compilation off, as on the hardware.

    Args:
        config_proto: the one to change; by default a new one.
    """
    config = _given("config_proto", config_proto, config_pb2.ConfigProto)
    config.allow_soft_placement = True
    config.log_device_placement = False
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    npu_graph_options(config.graph_options)
    return config


def npu_session_config_init(session_config: Any = None) -> Any:
    """Returns a session configuration for this machine; see `npu_config_proto`."""
    return npu_config_proto(session_config)


def npu_graph_options(graph_options: Any = None) -> Any:
    """Returns graph options with JIT compilation off."""
    options = _given("graph_options", graph_options, config_pb2.GraphOptions)
    npu_optimizer_options(options.optimizer_options)
    return options


def npu_optimizer_options(optimizer_options: Any = None) -> Any:
    """Returns optimizer options with JIT compilation off."""
    options = _given("optimizer_options", optimizer_options, config_pb2.OptimizerOptions)
    options.global_jit_level = config_pb2.OptimizerOptions.OFF
    return options


def set_keras_session_npu_config(config: Any = None) -> Any:
    """Makes a session, gives it to Keras, and returns it.

    Args:
        config: its configuration.
    """
    session = _session(npu_config_proto(config))
    tf.compat.v1.keras.backend.set_session(session)
    return session


def init_resource(config: Any = None) -> tuple[Any, Any]:
    """Returns a session, and the operation that `shutdown_resource` runs in it.

    Args:
        config: configuration of the session.
    """
    session = _session(npu_config_proto(config))
    with session.graph.as_default():
        return session, tf.no_op(name="shutdown_system")


def shutdown_resource(sess: Any, npu_shutdown: Any) -> None:
    """Runs the operation that `init_resource` returned."""
    _checked(sess).run(npu_shutdown)


def close_session(sess: Any) -> None:
    """Closes a session."""
    _checked(sess).close()


def set_iteration_per_loop(sess: Any, train_op: Any, iterations_per_loop: int = 1) -> Any:
    """Returns the op as it is: each `run` takes one step, where the hardware takes several.

    Args:
        sess: the session.
        train_op: what it runs.
        iterations_per_loop: how many steps the hardware would take in a run.
    """
    if iterations_per_loop != 1:
        warn_once(
            f"set_iteration_per_loop(..., {iterations_per_loop})",
            "`session.run` takes one step; run it that many times as often",
        )
    return train_op


def set_graph_exec_config(fetch: Any, **options: Any) -> Any:
    """Returns what is fetched as it is; the options are those of the hardware's compiler."""
    warn_once("set_graph_exec_config()")
    return fetch


def _given(name: str, value: Any, kind: type) -> Any:
    """Returns the message to change: the one given, or a new one."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be a `tf.compat.v1.{kind.__name__}` or None. Received: {name}={value!r}"
        )
    return value


def _checked(sess: Any) -> Any:
    if isinstance(sess, type) or not (hasattr(sess, "run") and hasattr(sess, "close")):
        raise TypeError(
            "`sess` must be a session, such as the one that `init_resource` returns. "
            f"Received: sess={sess!r}"
        )
    return sess


def _session(config: Any) -> Any:
    # Eagerly, a session gets a graph of its own.
    graph = tf.Graph() if tf.executing_eagerly() else None
    return tf.compat.v1.Session(graph=graph, config=config)
