# SPDX-License-Identifier: Apache-2.0
"""What one rank sees of the contract, for every flavour: prints one line of JSON for each."""

import json
import sys
import traceback

import numpy as np

from npu_keras import distribute

engine = distribute.engine(timeout_s=60)  # before TensorFlow makes its first tensor

import tensorflow as tf  # noqa: E402
from flavours import FLAVOURS, INF, Rows, manager, steps  # noqa: E402

from npu_keras.overflow import install_float_status  # noqa: E402

RANK, SIZE = engine.rank, engine.size


def distributed(flavour, **settings):
    return flavour.scaled(flavour.sgd(1.0), manager(64.0), is_distributed=True, **settings)


def report(run, **more):
    return {
        "weights": [np.asarray(weight).tolist() for weight in run.weights()],
        "scale": run.scale(),
        "counters": run.counters(),
        "events": [(e.attempt, e.kind, e.rank, e.variable) for e in run.events()],
        **more,
    }


def mine(good, bad, *ranks):
    return bad if RANK in ranks else good


def agreement(flavour):
    """One rank, then another, then all overflow: skipped by all; means in between."""
    run = flavour.run(distributed, [[0.0, 0.0]])
    last = SIZE - 1
    bad = [mine(1.0, INF, last), mine(1.0, INF, 0), INF, mine(1.0, float("nan"), 0, last)]
    return report(steps(run, [(float(RANK),), *[(each,) for each in bad], (1.0,)]))


def saturation(flavour):
    """The last rank's status register reads as set in the second step."""
    reads = []

    class Register:
        def get(self):
            def read():
                reads.append(RANK == SIZE - 1 and len(reads) == 1)
                return reads[-1]

            return tf.reshape(tf.numpy_function(read, [], tf.bool), [])

        def clear(self):
            return tf.no_op()

    install_float_status(Register())
    run = flavour.run(lambda f: distributed(f, overflow_mode="saturation"), [0.0])
    found = report(steps(run, [(1.0,)] * 3))
    install_float_status(None)
    return found


def sparse_and_missing(flavour):
    """Rows that ranks share; a gradient that only the first rank has."""
    run = flavour.run(distributed, [np.zeros((3, 1)), 0.0])
    rows = Rows((float(SIZE), 1.0 * SIZE), (0, 2 if RANK else 0))
    return report(steps(run, [(rows, 1.0 * SIZE if RANK == 0 else None)] * 2))


def nestings(flavour):
    """Either order of two wrappers is one wrapper with both flags."""
    home, found = flavour.home, []

    def outside(f):
        return home.NPULossScaleOptimizer(home.NPUDistributedOptimizer(f.sgd()), manager(64.0))

    def inside(f):
        return home.NPUDistributedOptimizer(home.NPULossScaleOptimizer(f.sgd(), manager(64.0)))

    for make in (outside, inside):
        run = flavour.run(make, [0.0])
        found.append(report(steps(run, [(float(RANK),), (mine(1.0, INF, SIZE - 1),)])))
    return {"outside": found[0], "inside": found[1]}


def deciding_together(flavour):
    """Without aggregation, but with `is_distributed=True`, all ranks skip what one cannot take."""
    run = flavour.run(
        lambda f: f.home.NPULossScaleOptimizer(f.sgd(), manager(64.0), is_distributed=True), [0.0]
    )
    return report(steps(run, [(1.0,), (mine(1.0, INF, SIZE - 1),), (1.0,)]))


CHECKS = [agreement, saturation, sparse_and_missing, nestings, deciding_together]


def refused(flavour):
    """The error of a first step that cannot be."""
    try:
        agreement(flavour)
    except RuntimeError as error:
        return str(error)
    return "nothing was refused"


for flavour in FLAVOURS:
    session = flavour.name == "v1 graph" and engine.name == "collective"
    for check in [refused] if session else CHECKS:
        try:
            found = check(flavour)
        except Exception:
            traceback.print_exc()
            sys.exit(f"{flavour.name}: {check.__name__}")
        print("found", json.dumps([flavour.name, check.__name__, found]), flush=True)
