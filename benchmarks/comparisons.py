# SPDX-License-Identifier: Apache-2.0
"""What is compared: each function measures one row or a few; a new one joins in `ALL`."""

from benchmarks import one_process, two_processes

ALL = {
    "import": one_process.importing,
    "overflow_check": one_process.overflow_check,
    "loss_scaling": one_process.loss_scaling,
    "loss_scaling_xla": one_process.loss_scaling_xla,
    "many_variables": one_process.many_variables,
    "transformer": one_process.transformer,
    "growth": one_process.growth,
    "more_variables": one_process.more_variables,
    "logging": one_process.logging,
    "distributed_fit": two_processes.distributed_fit,
    "all_reduce": two_processes.all_reduce,
    "communication": two_processes.communication,
    "sharding": two_processes.sharding,
    "more_ranks": two_processes.more_ranks,
}

QUICK = ("overflow_check", "loss_scaling", "loss_scaling_xla", "growth", "logging")
"""Those of a quick run: of one process, and without the ones that compile for minutes."""
