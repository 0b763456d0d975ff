# SPDX-License-Identifier: Apache-2.0
"""`NPURunConfig` of Ascend's adapter, and the configurations that go into it."""

from typing import Any

from npu_keras import run_config
from npu_keras.ascend.hardware import warn_once

_TRAINING = (
    *("model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps"),
    *("save_checkpoints_secs", "session_config", "keep_checkpoint_max"),
    *("keep_checkpoint_every_n_hours", "log_step_count_steps", "train_distribute"),
    *("eval_distribute", "distribute"),
)
_HARDWARE = (
    *("iterations_per_loop", "profiling_config", "enable_data_pre_proc", "precision_mode"),
    *("enable_reduce_precision", "variable_format_optimize", "mix_compile_mode", "hcom_parallel"),
    *("graph_memory_max_size", "variable_memory_max_size", "auto_tune_mode", "dump_config"),
    *("stream_max_parallel_num", "horovod_mode", "graph_run_mode", "op_debug_level"),
    *("enable_scope_fusion_passes", "enable_exception_dump", "op_select_implmode"),
    *("optypelist_for_implmode", "dynamic_input_config", "aoe_mode", "work_path"),
    *("buffer_optimize", "enable_small_channel", "fusion_switch_file", "enable_compress_weight"),
    *("compress_weight_conf", "op_compiler_cache_mode", "op_compiler_cache_dir", "debug_dir"),
    *("hcom_multi_mode", "dynamic_input", "dynamic_graph_execute_mode"),
    *("dynamic_inputs_shape_range", "local_rank_id", "local_device_list", "session_device_id"),
    *("distribute_config", "modify_mixlist", "op_precision_mode", "device_type", "soc_config"),
    *("hccl_timeout", "op_wait_timeout", "op_execute_timeout", "HCCL_algorithm"),
    *("customize_dtypes", "op_debug_config", "memory_config", "atomic_clean_policy"),
    *("static_memory_policy", "external_weight", "deterministic", "topo_sorting_mode"),
)


class NPURunConfig(run_config.NPURunConfig):
    """Run-wide settings; of the adapter's some sixty fields one matters to the optimizers.

    All fields can be read back as attributes. Those for the hardware or for `tf.estimator`, which
    TensorFlow no longer has, are kept and reported once.

    Args:
        is_tailing_optimization: whether the last part of the aggregation overlaps the update;
            optimizers made later must agree. (The adapter does not check.)
        **fields: other fields of the adapter's class.

    Raises:
        TypeError: for a field that the adapter's class does not have.
    """

    def __init__(self, *, is_tailing_optimization: bool = False, **fields: Any) -> None:
        unknown = sorted(set(fields) - {*_TRAINING, *_HARDWARE})
        if unknown:
            raise TypeError(
                f"NPURunConfig has no fields {unknown}. There are: is_tailing_optimization, "
                f"{', '.join([*_TRAINING, *_HARDWARE])}"
            )
        super().__init__(is_tailing_optimization=is_tailing_optimization)
        for name in [name for name in fields if name in _HARDWARE]:
            warn_once(f"NPURunConfig({name}=...)")
        for name in [name for name in fields if name in _TRAINING]:
            warn_once(f"NPURunConfig({name}=...)", "TensorFlow has no `tf.estimator` any more")
        vars(self).update(fields)


class _Recorded:
    def __init__(self, **fields: Any) -> None:
        warn_once(type(self).__name__)
        vars(self).update(fields)


class ProfilingConfig(_Recorded):
    """Settings of the hardware's profiler; kept as attributes."""


class DumpConfig(_Recorded):
    """Settings of the hardware's dumps; kept as attributes."""


class DynamicInputConfig(_Recorded):
    """Settings of shapes for the hardware's compiler; kept as attributes."""
