# SPDX-License-Identifier: Apache-2.0
"""One decision: who overflowed does not matter, every rank does the same."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from harness import (
    INF,
    Watch,
    apply,
    check,
    events,
    listed,
    manager,
    rank,
    scaled,
    size,
    weight,
)

import npu_keras
from npu_keras.overflow import install_float_status


def bad_ranks_by_step():
    """Nobody, then every set of ranks, then nobody."""
    ranks = range(size())
    sets = [s for n in range(size() + 1) for s in itertools.combinations(ranks, n)]
    return [*sets, ()]


def _fit(mode, policy, bad_input):
    keras.config.set_dtype_policy(policy)
    steps = bad_ranks_by_step()
    x = np.float32([[bad_input(n) if rank() in bad else 1.0] for n, bad in enumerate(steps)])
    y = np.ones((len(steps), 1), "float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3, use_bias=False)])
    optimizer = scaled(keras.optimizers.Adam(0.01), mode)
    watch = Watch(optimizer)
    # The gradient of the kernel is the scale times the input.
    model.compile(optimizer, loss=lambda y, p: keras.ops.sum(p), jit_compile=False)
    model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[watch])
    return {"steps": watch.steps, "events": events(optimizer), "bad": steps}


@check
def fit_inf_nan():
    return _fit("inf_nan", "float32", lambda step: INF)


@check
def fit_saturation():
    # 8 * 8188 is 65504, the largest float16: finite, and no less an overflow. The scale halves
    # with every other overflow.
    return _fit("saturation", "mixed_float16", lambda step: 8188.0 * 2 ** ((step - 1) // 2))


@check
def saturated_rows():
    """A saturated element in the rows of an embedding, on the last rank only."""
    keras.config.set_dtype_policy("mixed_float16")
    table, optimizer = weight(np.ones((6, 2))), scaled(mode="saturation")
    top = 65504.0 / 8 if rank() == size() - 1 else 1.0
    rows = tf.constant([[1.0, top], [1.0, 1.0]])
    apply(optimizer, [table], [tf.IndexedSlices(rows, [4, 2], [6, 2])])
    return {"weights": listed([table]), "events": events(optimizer)}


@check
def status_register():
    """The device's register is set on the last rank, while all of the gradients are finite."""

    class Status:
        def __init__(self):
            self.flag, self.reads = tf.Variable(rank() == size() - 1), 0

        def get(self):
            self.reads += 1
            return self.flag.read_value()

        def clear(self):
            self.flag.assign(False)

    status = Status()
    install_float_status(status)
    v, optimizer = weight(), scaled(mode="saturation", reduction="sum")
    report = []
    for _ in range(2):
        apply(optimizer, [v], [1.0])
        report.append([bool(optimizer.last_step_finite), float(optimizer.loss_scale)])
    install_float_status(None)
    return {"steps": report, "events": events(optimizer), "reads": status.reads}


@check
def deciding_only():
    """Gradients stay local; the decision does not."""
    v = weight()
    optimizer = npu_keras.NPULossScaleOptimizer(
        keras.optimizers.SGD(0.1), manager(), is_distributed=True
    )
    optimizer.scale_loss(0.0)
    report = []
    for bad in bad_ranks_by_step():
        apply(optimizer, [v], [INF if rank() in bad else 1.0 + rank()])
        report.append([float(v.numpy()), float(optimizer.loss_scale)])
    return {"steps": report, "events": events(optimizer)}


@check
def sum_overflows():
    """Every rank has a finite gradient; their sum is infinite."""
    v, w = weight(), weight([1.0, 2.0], name="w")
    optimizer = scaled(reduction="sum")
    apply(optimizer, [v, w], [1.0, 3e38 / 8])
    apply(optimizer, [v, w], [1.0, 1.0])
    return {
        "weights": listed([v, w]),
        "scale": float(optimizer.loss_scale),
        "events": events(optimizer),
    }


@check
def sum_overflows_on_the_wire():
    """40000 fits into float16 and the sum of two does not."""
    v, optimizer = weight(), scaled(reduction="sum", compression="fp16")
    apply(optimizer, [v], [5000.0])
    return {"weights": listed([v]), "events": events(optimizer)}


@check
def nobody_checks():
    """Without a check an infinity is applied, and is no overflow, wherever it comes from."""
    unchecked = npu_keras.FixedLossScaleManager(8.0, enable_overflow_check=False)
    v, optimizer = weight(), scaled(scale_manager=unchecked, reduction="sum", compression="fp16")
    for gradient in (5000.0, INF if rank() == 0 else 1.0):
        apply(optimizer, [v], [gradient])
    counters = [int(optimizer.skipped_steps), int(optimizer.iterations)]
    return {"infinite": not np.isfinite(v.numpy()), "counters": counters}


@check
def mean_of_largest():
    """The mean of largest numbers is finite, or the step is skipped: never an inf in a weight."""
    v, optimizer = weight(1.0, "float16"), scaled(scale_manager=manager(1.0))
    apply(optimizer, [v], [65504.0])
    return {"weights": listed([v]), "applied": bool(optimizer.last_step_finite)}


@check
def cast_overflows():
    """1e5 fits into float32 and not into float16; only the last rank has it."""
    report = {}
    for sparse in (False, True):
        v, optimizer = weight(np.ones((4, 2))), scaled(compression="fp16")
        value = 4e4 * size() if rank() == size() - 1 else 1.0
        gradient = value
        if sparse:
            gradient = tf.IndexedSlices(tf.fill([1, 2], value), [1], [4, 2])
        apply(optimizer, [v], [gradient])
        report["sparse" if sparse else "dense"] = {
            "weights": listed([v]),
            "applied": bool(optimizer.last_step_finite),
            "events": events(optimizer),
        }
    return report
