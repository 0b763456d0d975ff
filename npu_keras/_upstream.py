# SPDX-License-Identifier: Apache-2.0
"""Every private name of TensorFlow and Keras that is used, in one place.

Each entry says what it is for and the upstream version it was checked on; the tests of this
module fail, by name, when one is gone.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util
from tensorflow.python.util import deprecation

INHERITED = (
    "_accumulated_gradients",
    "_check_variables_are_known",
    "_clip_gradients",
    "_get_variable_index",
    "_iterations",
    "_learning_rate",
    "_overwrite_variable_with_gradient",
    "_track_variable",
    "_trainable_variables",
    "_trainable_variables_indices",
    "_var_key",
    "_variables",
)
"""What the Keras 3 hosts use of the optimizer they are a kind of (Keras 3.15.1)."""

INHERITED_V1 = ("_name", "_track_trackable")
"""What the TensorFlow 1 hosts use of theirs (TensorFlow 2.21.0)."""

BOOKKEEPING = "_self_"
"""How names begin under which TensorFlow keeps record of an object (TensorFlow 2.21.0)."""


def in_xla() -> bool:
    """Whether the graph being traced will be compiled by XLA (TensorFlow 2.21.0)."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def supports_no_merge_call() -> bool:
    """Whether replicas write variables without a `merge_call` here (TensorFlow 2.21.0)."""
    return bool(tf.__internal__.distribute.strategy_supports_no_merge_call())


def leave_aggregation_to_us(optimizer: Any) -> None:
    """Stops a Keras optimizer from summing gradients over replicas itself (Keras 3.15.1)."""
    vars(optimizer)["_all_reduce_sum_gradients"] = list


def updates_all_at_once(optimizer: Any) -> bool:
    """Whether a Keras optimizer's update may run only once in a step (Keras 3.15.1).

    Nadam, for one, keeps a product of its own beside the slots of the variables.
    """
    own = type(optimizer)._backend_update_step
    return own is not keras.optimizers.Optimizer._backend_update_step


def updates_by_rule(optimizer: Any) -> bool:
    """Whether a Keras optimizer updates by a rule of Keras' own (Keras 3.15.1).

    Those write variables by the methods of the variables, whatever their settings.

    Args:
        optimizer: an optimizer, or the `super()` of one.
    """
    base = keras.optimizers.Optimizer
    own = optimizer.update_step, optimizer._apply_weight_decay, optimizer._clip_gradients
    usual = getattr(optimizer.apply, "__func__", None) is base.apply
    return usual and all(method.__module__.startswith("keras.src.") for method in own)


def clip_gradients(optimizer: Any, gradients: Sequence[Any], norm: float) -> list[Any]:
    """Clips by the global norm exactly as a Keras optimizer does (Keras 3.15.1)."""
    before = optimizer.global_clipnorm
    optimizer.global_clipnorm = norm
    try:
        return list(optimizer._clip_gradients(gradients))
    finally:
        optimizer.global_clipnorm = before


def add_to_accumulators(optimizer: Any, gradients: list[Any], sums: list[Any]) -> None:
    """Adds gradients to a Keras optimizer's accumulators, in each replica (Keras 3.15.1)."""
    optimizer._backend_increment_gradient_accumulators(gradients, sums)


def accumulated_gradients(optimizer: Any) -> list[Any]:
    """The accumulators of a Keras optimizer or of the one inside, if it has any (Keras 3.15.1)."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "_accumulated_gradients", ()))


@contextlib.contextmanager
def as_single_step(optimizer: Any) -> Iterator[None]:
    """Makes `apply` of a Keras optimizer one update after k counted micro-batches (Keras 3.15.1).

    As with its own accumulation, the update sees the number of updates so far as `iterations`, and
    a schedule the number of micro-batches before the last one.
    """
    steps, rate = optimizer.gradient_accumulation_steps, optimizer._learning_rate
    counted = tf.convert_to_tensor(optimizer._iterations)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        value = rate(counted - 1)
        vars(optimizer)["_learning_rate"] = lambda: value
    optimizer._iterations.assign(counted // steps - 1)
    optimizer.gradient_accumulation_steps = None
    try:
        yield
    finally:
        optimizer.gradient_accumulation_steps = steps
        vars(optimizer)["_learning_rate"] = rate
        optimizer._iterations.assign(counted)


def slots_by_reference(optimizer: Any, variables: Sequence[Any]) -> list[tuple[int, str, Any]]:
    """Builds a Keras optimizer and tells which slot it made for which variable (Keras 3.15.1).

    Returns:
        For each slot the position of its variable, the slot's name, and the slot.
    """
    made: list[tuple[int, str, Any]] = []
    positions = {id(variable): i for i, variable in enumerate(variables)}
    add = optimizer.add_variable_from_reference

    def recording(reference_variable: Any, name: str | None = None, **kwargs: Any) -> Any:
        slot = add(reference_variable, name=name, **kwargs)
        made.append((positions[id(reference_variable)], str(name), slot))
        return slot

    vars(optimizer)["add_variable_from_reference"] = recording
    try:
        optimizer.build(list(variables))
    finally:
        del vars(optimizer)["add_variable_from_reference"]
    return made


def layers_of(model: Any) -> list[Any]:
    """The model and all layers in it, nested ones included (Keras 3.15.1)."""
    return list(model._flatten_layers())


def own_non_trainable_variables(layer: Any) -> list[Any]:
    """Variables a layer itself made as non-trainable (Keras 3.15.1).

    The public `non_trainable_variables` also lists the weights of a frozen layer.
    """
    return list(layer._non_trainable_variables)


def seed_states(layer: Any) -> list[Any]:
    """The states of a layer's own random generators (Keras 3.15.1)."""
    return [generator.state for generator in layer._seed_generators]


def loss_average(model: Any) -> list[Any]:
    """The variables of the running mean of the loss, none before `compile` (Keras 3.15.1)."""
    tracker = model._loss_tracker
    return [] if tracker is None else list(tracker.variables)


def samples_in_loss(model: Any) -> float:
    """How many samples the running mean of the loss has counted since its reset (Keras 3.15.1)."""
    tracker = model._loss_tracker
    return 0.0 if tracker is None else float(tracker.count)


def has_own_train_step(model: Any) -> bool:
    """Whether `train_step` is the user's and not the one of Keras (Keras 3.15.1)."""
    return not str(model.train_step.__module__).startswith("keras.src.")


def runtime_has_started() -> bool:
    """Whether TensorFlow has set up its devices already (TensorFlow 2.21.0)."""
    return context.context()._context_handle is not None


def start_collectives(addresses: Sequence[str], rank: int) -> None:
    """Joins the processes at `addresses` for collective ops (TensorFlow 2.21.0).

    Listens on `addresses[rank]`. The public way, `tf.distribute.MultiWorkerMirroredStrategy`,
    does the same and brings its own replicas, time-outs and health checks along.
    """
    ctx = context.context()
    ctx.configure_collective_ops(collective_leader="/job:worker/replica:0/task:0")
    server = tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec({"worker": list(addresses)}).as_cluster_def(),
        default_session_config=ctx.config,
        job_name="worker",
        task_index=rank,
        protocol="grpc",
    )
    ctx.enable_collective_ops(server)
    ctx.ensure_initialized()


def abort_collectives(message: str) -> None:
    """Ends every collective op of this process with an UnavailableError (TensorFlow 2.21.0)."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def answers(rank: int, timeout_s: float) -> bool:
    """Whether the process of a rank serves collective ops (TensorFlow 2.21.0)."""
    task = f"/job:worker/replica:0/task:{rank}"
    try:
        context.context().check_collective_ops_peer_health(task, int(timeout_s * 1000))
    except tf.errors.OpError:
        return False
    return True


def run_independently(op: Any) -> None:
    """Lets an op with side effects run beside the others of its function (TensorFlow 2.21.0).

    A `tf.function` runs them one after the other in the order of tracing, `tf.numpy_function`
    among them. In a graph of `tf.compat.v1` nothing has an order.
    """
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(op)


def keeps_order() -> bool:
    """Whether side effects happen in the order they are written here (TensorFlow 2.21.0).

    Not so in a graph of `tf.compat.v1`, nor in the branches of a conditional in one.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    return graph is None or getattr(graph, "experimental_acd_manager", None) is not None


def control_flow_context(graph_or_op: Any) -> Any:
    """The branch or loop of `tf.compat.v1` an op is in or a graph is adding to (TF 2.21.0)."""
    return graph_or_op._get_control_flow_context()


def is_usable_here(op: Any) -> bool:
    """Whether ops made here may depend on an op of a graph made earlier (TensorFlow 2.21.0).

    An op inside a branch or loop is out of reach for those outside of it.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not op.graph:
        graph = getattr(graph, "outer_graph", None)
        if graph is None:
            return False
    here, there = control_flow_context(graph), control_flow_context(op)
    while here is not None and here is not there:
        here = here.outer_context
    return here is there


def silence_deprecations() -> None:
    """Stops TensorFlow from logging each deprecated function it is called by (TF 2.21.0)."""
    deprecation._PRINT_DEPRECATION_WARNINGS = False
