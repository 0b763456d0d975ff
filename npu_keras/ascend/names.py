# SPDX-License-Identifier: Apache-2.0
"""Which module of the adapters has which name, and what stands behind it here."""

_BEHIND = {
    "npu_keras.loss_scale": ("FixedLossScaleManager", "ExponentialUpdateLossScaleManager"),
    "npu_keras.buckets": ("set_split_strategy_by_idx", "set_split_strategy_by_size"),
    "npu_keras.ascend.optimizers": (
        "NPUDistributedOptimizer",
        "NPULossScaleOptimizer",
        "NPUOptimizer",
    ),
    "npu_keras.ascend.wrapping": (
        "KerasDistributeOptimizer",
        "npu_distributed_keras_optimizer_wrapper",
        "npu_distributed_optimizer_wrapper",
        "npu_keras_optimizer",
        "npu_tf_optimizer",
    ),
    "npu_keras.ascend.tf2_optimizer": ("NpuLossScaleOptimizer",),
    "npu_keras.ascend.run_config": (
        "DumpConfig",
        "DynamicInputConfig",
        "NPURunConfig",
        "ProfilingConfig",
    ),
    "npu_keras.ascend.hooks": (
        "NPUBroadcastGlobalVariablesCallback",
        "NPUBroadcastGlobalVariablesHook",
        "npu_callbacks_append",
        "npu_hooks_append",
    ),
    "npu_keras.ascend.ranks": (
        "get_group_rank_from_world_rank",
        "get_local_rank_id",
        "get_local_rank_size",
        "get_npu_local_rank_id",
        "get_npu_rank_id",
        "get_npu_rank_size",
        "get_rank_id",
        "get_rank_size",
        "create_group",
        "destroy_group",
        "get_world_rank_from_group_rank",
    ),
    "npu_keras.ascend.scopes": ("keep_dtype_scope", "without_npu_compile_scope"),
    "npu_keras.ascend.sessions": (
        "close_session",
        "init_resource",
        "npu_config_proto",
        "npu_graph_options",
        "npu_optimizer_options",
        "npu_session_config_init",
        "set_graph_exec_config",
        "set_iteration_per_loop",
        "set_keras_session_npu_config",
        "shutdown_resource",
    ),
    "npu_keras.ascend.collectives": (
        "all_reduce",
        "allgather",
        "allreduce",
        "npu_allreduce",
        "reduce_scatter",
    ),
    "npu_keras.ascend.distribution": ("broadcast", "shard_and_rebatch_dataset"),
    "npu_keras.ascend.ops": (
        "drop_out_do_mask",
        "drop_out_do_mask_v3",
        "drop_out_gen_mask",
        "drop_out_gen_mask_v3",
        "dropout",
        "fast_gelu",
        "gelu",
        "initialize_system",
    ),
    "npu_keras.ascend.device": (
        "enable_v1",
        "global_options",
        "npu_compat_function",
        "open",
        "set_device_sat_mode",
        "set_npu_loop_size",
    ),
}
HOMES = {name: module for module, names in _BEHIND.items() for name in names}
HOMES |= {"shutdown_system": "npu_keras.ascend.ops"}
HOMES |= {"RewriterConfig": "tensorflow.core.protobuf.rewriter_config_pb2"}
"""The module that defines a name."""

OTHER_NAMES = {
    "npu_bridge.hccl.hccl_ops.broadcast": "npu_keras.ascend.collectives:broadcast_tensors",
    "npu_device.distribute.hccl_ops.broadcast": "npu_keras.ascend.collectives:broadcast_tensors",
    "npu_bridge.hccl.hccl_ops.reduce": "npu_keras.ascend.collectives:reduce_to_root",
    "npu_device.distribute.hccl_ops.reduce": "npu_keras.ascend.collectives:reduce_to_root",
    "moxing.tensorflow.executor.ops_adapter.size": "npu_keras.ascend.ranks:get_rank_size",
    "moxing.tensorflow.executor.ops_adapter.rank": "npu_keras.ascend.ranks:get_rank_id",
    "npu_bridge.npu_init.config_pb2": "tensorflow.core.protobuf.config_pb2:",
    "npu_bridge.npu_init.rewriter_config_pb2": "tensorflow.core.protobuf.rewriter_config_pb2:",
    "npu_bridge.npu_init.os": "os:",
    "npu_bridge.npu_init.npu_unary_ops": "@npu_bridge.estimator.npu_unary_ops.npu_unary_ops",
    "npu_bridge.npu_init.npu_aicore_ops": "@npu_bridge.estimator.npu_aicore_ops",
    "npu_bridge.npu_init.npu_ops": "@npu_bridge.estimator.npu_ops",
    "npu_bridge.npu_init.hccl_ops": "@npu_bridge.hccl.hccl_ops",
    "npu_bridge.npu_init.npu_scope": "@npu_bridge.estimator.npu.npu_scope",
    "npu_bridge.npu_init.util": "@npu_bridge.estimator.npu.util",
    "npu_bridge.estimator.npu.npu_optimizer.allreduce": (
        "npu_keras.ascend.collectives:average_all_reduce"
    ),
    "npu_device.npu_device.gen_npu_ops": "@npu_device.gen_npu_ops",
}
"""Where a name stands for something called differently; `@` is another module of the adapters."""

_HCCL_OPS = ("allgather", "allreduce", "broadcast", "reduce", "reduce_scatter")
_MANAGERS = _BEHIND["npu_keras.loss_scale"]
_OPTIMIZERS = _BEHIND["npu_keras.ascend.optimizers"]
_CONFIGS = _BEHIND["npu_keras.ascend.run_config"]
_SPLITS = _BEHIND["npu_keras.buckets"]
_WRAPPERS = tuple(
    name for name in _BEHIND["npu_keras.ascend.wrapping"] if "keras_optimizer_w" not in name
)
_RANKS = tuple(name for name in _BEHIND["npu_keras.ascend.ranks"] if "npu" not in name)
_NPU_RANKS = tuple(name for name in _BEHIND["npu_keras.ascend.ranks"] if "npu" in name)
_HOOKS = _BEHIND["npu_keras.ascend.hooks"]
_SCOPES = _BEHIND["npu_keras.ascend.scopes"]
_UTIL = ("set_graph_exec_config", "set_iteration_per_loop")
_SESSIONS = tuple(n for n in _BEHIND["npu_keras.ascend.sessions"] if n not in _UTIL)
_SYSTEM = ("initialize_system", "shutdown_system")

_BRIDGE: dict[str, tuple[str, ...]] = {
    "npu_init": (
        *(*_MANAGERS, *_OPTIMIZERS, *_WRAPPERS, *_CONFIGS, *_SPLITS, *_RANKS, *_NPU_RANKS),
        *(*_HOOKS, *_SESSIONS, "npu_allreduce", "RewriterConfig", "rewriter_config_pb2"),
        *("config_pb2", "hccl_ops", "npu_aicore_ops", "npu_ops", "npu_scope", "npu_unary_ops"),
        *("os", "util"),
    ),
    "estimator.npu.npu_callbacks": ("NPUBroadcastGlobalVariablesCallback",),
    "estimator.npu.npu_config": _CONFIGS,
    "estimator.npu.npu_convert_dropout": (),  # importing it replaces the dropout of Keras there
    "estimator.npu.npu_estimator": (),
    "estimator.npu.npu_hook": ("NPUBroadcastGlobalVariablesHook",),
    "estimator.npu.npu_loss_scale_manager": _MANAGERS,
    "estimator.npu.npu_loss_scale_optimizer": ("NPULossScaleOptimizer",),
    "estimator.npu.npu_optimizer": (
        *(*_OPTIMIZERS, "KerasDistributeOptimizer", "allreduce", "npu_allreduce"),
        "npu_distributed_optimizer_wrapper",
    ),
    "estimator.npu.npu_plugin": ("set_device_sat_mode",),
    "estimator.npu.npu_rnn": (),
    "estimator.npu.npu_scope": _SCOPES,
    "estimator.npu.npu_strategy": (),
    "estimator.npu.util": _UTIL,
    "estimator.npu_aicore_ops": ("fast_gelu",),
    "estimator.npu_ops": ("dropout", *_SYSTEM),
    "estimator.npu_unary_ops.npu_unary_ops": ("gelu",),
    "hccl.hccl_ops": _HCCL_OPS,
}

MODULES: dict[str, tuple[str, ...]] = {
    "hccl.manage.api": _RANKS,
    "hccl.split.api": _SPLITS,
    "moxing.tensorflow.executor.ops_adapter": ("rank", "size"),
    "npu_device": (
        *("global_options", "keep_dtype_scope", "npu_compat_function", "open"),
        *("set_device_sat_mode", "set_npu_loop_size"),
    ),
    "npu_device.compat": ("enable_v1",),
    "npu_device.distribute": (
        *("all_reduce", "broadcast", "npu_distributed_keras_optimizer_wrapper"),
        "shard_and_rebatch_dataset",
    ),
    "npu_device.distribute.hccl": (
        *("all_reduce", "broadcast", "npu_callbacks_append"),
        *("npu_distributed_keras_optimizer_wrapper", "shard_and_rebatch_dataset"),
    ),
    "npu_device.distribute.hccl_ops": _HCCL_OPS,
    "npu_device.gen_npu_ops": (
        *("drop_out_do_mask", "drop_out_do_mask_v3", "drop_out_gen_mask", "drop_out_gen_mask_v3"),
        *("fast_gelu", "gelu"),
    ),
    "npu_device.npu_device": ("gen_npu_ops", "global_options", "open", "set_device_sat_mode"),
    "npu_device.ops": ("gelu",),
    "npu_device.train.optimizer": ("NpuLossScaleOptimizer",),
    "npu_device.train.optimizer.npu_loss_scale_optimizer": ("NpuLossScaleOptimizer",),
}
for _name, _names in _BRIDGE.items():
    MODULES[f"npu_bridge.{_name}"] = _names
    MODULES[f"npu_device.compat.v1.{_name}"] = _names
    OTHER_NAMES |= {
        key.replace("npu_bridge.", "npu_device.compat.v1.", 1): value
        for key, value in list(OTHER_NAMES.items())
        if key.startswith(f"npu_bridge.{_name}.")
    }

_NO_ESTIMATOR = "TensorFlow has had no `tf.estimator` since 2.16: train with a session or Keras"
_BY_SESSION = "use the hooks and savers of `tf.compat.v1.train`"
_BY_PROCESSES = "start a process for each device: `python -m npu_keras run -n 2 script.py`"
_BY_KERAS = "use the recurrent layers of Keras"
_BY_COLLECTIVES = "use `allgather` or `broadcast`, in which all ranks take part"
REASONS = {
    "DynamicGRUV2": _BY_KERAS,
    "DynamicRNN": _BY_KERAS,
    "NPUCheckpointSaverHook": _BY_SESSION,
    "NPUEstimator": _NO_ESTIMATOR,
    "NPUEstimatorSpec": _NO_ESTIMATOR,
    "NPUOutputTensorHook": _BY_SESSION,
    "NPUStrategy": _BY_PROCESSES,
    "npu_dynamic_rnn": _BY_KERAS,
    "npu_rnn": _BY_KERAS,
    "npu_run_config_init": _NO_ESTIMATOR,
    "npu_strategy": _BY_PROCESSES,
    "receive": _BY_COLLECTIVES,
    "send": _BY_COLLECTIVES,
}
"""Why some names of the adapters cannot be here."""

_INIT = tuple(name for name in REASONS if name.lower().startswith("npu"))
STARRED = {f"{root}.npu_init": _INIT for root in ("npu_bridge", "npu_device.compat.v1")}
"""Which of them `from module import *` brings."""


def source(module: str, name: str) -> str:
    """Returns `"module:attribute"` behind a name, or `"@module"` for a stand-in of the adapters.

    Args:
        module: a key of `MODULES`.
        name: one of its names.
    """
    return OTHER_NAMES.get(f"{module}.{name}") or f"{HOMES[name]}:{name}"
