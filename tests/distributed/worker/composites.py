# SPDX-License-Identifier: Apache-2.0
"""Ranks whose optimizers are made of others."""

from harness import INF, apply, check, error_of, listed, manager, rank, scaled, size, weight
from made_of_others import MADE

import npu_keras


def _steps(optimizer):
    """Three steps: the second with an overflow on the last rank."""
    variables = [weight(1.0, name="v"), weight(1.0, name="w")]
    bad = INF if rank() == size() - 1 else 1.0
    report = []
    for gradients in ([1.0 + rank(), 4.0], [bad, 1.0], [1.0, 1.0]):
        apply(optimizer, variables, gradients)
        report.append([*listed(variables), int(optimizer.skipped_steps)])
    return report


@check
def made_of_others():
    return {
        f"{name}, tail" if tail else name: _steps(scaled(make(), tail=tail, split=1))
        for name, make in MADE.items()
        for tail in (False, True)
    }


@check
def made_of_others_and_sharded():
    def sharded(make):
        optimizer = npu_keras.NPUDistributedOptimizer(make(), is_weight_update_sharding=True)
        outer = npu_keras.NPULossScaleOptimizer(optimizer, manager())
        outer.build([weight(1.0, name="v"), weight(1.0, name="w")])

    return {name: error_of(lambda make=make: sharded(make)) for name, make in MADE.items()}
