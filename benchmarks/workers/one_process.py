# SPDX-License-Identifier: Apache-2.0
"""A process that trains models of some sizes with Adam, with our loss scaling or without."""

import functools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from keras import optimizers

from benchmarks import models
from benchmarks.one_process import OURS
from benchmarks.workers.protocol import serve


def main():
    """Serves the first step of a new model of each size, and further ones of it."""
    way, kind = sys.argv[1:3]
    make = {"wide": models.wide, "bank": models.bank}[kind]
    makers, trained = {}, []

    def first_step(size):
        trained.clear()  # one model at a time is in memory
        optimizer = optimizers.Adam(1e-4)
        optimizer = models.scaled(optimizer) if way == OURS else optimizer
        step = models.stepper(optimizer, functools.partial(make, size))
        trained.append(step)

        def timed(steps):
            begin = time.perf_counter()
            step()
            return time.perf_counter() - begin

        return timed

    for size in map(int, sys.argv[3:]):
        makers[f"first_step_{size}"] = functools.partial(first_step, size)
        makers[f"step_{size}"] = lambda: lambda steps: [trained[0]() for _ in range(steps)]
    serve(makers, 0)


main()
