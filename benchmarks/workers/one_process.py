# SPDX-License-Identifier: Apache-2.0
"""A process that trains one model with Adam, with our loss scaling or without."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from keras import optimizers

from benchmarks import models
from benchmarks.one_process import OURS
from benchmarks.workers.protocol import serve


def main():
    """Serves the first step of a new model, and further ones of it."""
    way, model, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    make = {"wide": models.wide, "bank": models.bank}[model]
    optimizer = optimizers.Adam(1e-4)
    step = models.stepper(
        models.scaled(optimizer) if way == OURS else optimizer, lambda: make(size)
    )

    def first_step(steps):
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin

    serve(
        {
            "first_step": lambda: first_step,
            "step": lambda: lambda steps: [step() for _ in range(steps)],
        },
        0,
    )


main()
