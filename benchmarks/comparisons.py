# SPDX-License-Identifier: Apache-2.0
"""What is compared: each function measures one row or a few; a new one joins in `ALL`."""

from benchmarks import growth, one_process, two_processes

ALL = {
    "overflow_check": one_process.overflow_check,
    "loss_scaling": one_process.loss_scaling,
    "loss_scaling_xla": one_process.loss_scaling_xla,
    "many_variables": one_process.many_variables,
    "transformer": one_process.transformer,
    "logging": one_process.logging,
    "more_parameters": growth.more_parameters,
    "more_variables": growth.more_variables,
    "most_variables": growth.most_variables,
    "more_ranks": growth.more_ranks,
    "distributed_fit": two_processes.distributed_fit,
    "all_reduce": two_processes.all_reduce,
    "sharding": two_processes.sharding,
    "communication": two_processes.communication,
    "import": one_process.importing,
}

FULL = tuple(name for name in ALL if name != "most_variables")
"""Those of a run that is not told which: all but 10,000 variables, which take as long as these."""

QUICK = ("overflow_check", "loss_scaling", "loss_scaling_xla", "more_parameters", "logging")
"""Those of a quick run: of one process, and without the ones that compile for minutes."""
