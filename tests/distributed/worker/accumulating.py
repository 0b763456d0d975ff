# SPDX-License-Identifier: Apache-2.0
"""Gradients that are added up locally and sent once in k steps."""

import functools

import keras
import numpy as np
from harness import (
    INF,
    apply,
    check,
    digest,
    error_of,
    events,
    rank,
    recorded,
    scaled,
    size,
    weight,
)


@check
def accumulates_locally():
    """Two half-batches a rank and one send make the step of the whole batch."""
    report = {}
    for wanted, gradients in (("k steps", (1.0, 3.0)), ("one step", (2.0,))):
        v = weight([0.0] * 1000)
        k = len(gradients) if len(gradients) > 1 else None
        inner = keras.optimizers.AdamW(0.1, global_clipnorm=0.5, gradient_accumulation_steps=k)
        optimizer = scaled(inner)
        sends = []
        for gradient in gradients * 2:
            with recorded() as sent:
                apply(optimizer, [v], [gradient * (1 + rank())])
            sends.append(sum(counts == [1000] for kind, _, counts in sent if kind == "all_reduce"))
        report[wanted] = {"weights": digest([v]), "first": float(v.numpy()[0]), "sends": sends}
    return report


@check
def accumulates_with_overflows():
    """A bad half-batch of any rank is dropped on all; the window waits for another."""
    v = weight(0.0)
    optimizer = scaled(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    report = []
    for step, gradient in enumerate([1.0, INF, 3.0, 5.0, 7.0]):
        bad = gradient == INF and rank() != size() - 1
        apply(optimizer, [v], [2.0 if bad else gradient])
        report.append([float(v.numpy()), bool(optimizer.last_step_finite), step])
    return {"steps": report, "events": events(optimizer)}


@check
def accumulates_where_hardware_saturates():
    """The largest number is an overflow there, and nine tenths of it are none."""
    v, largest = weight(0.0), float(np.finfo(np.float32).max)
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer = scaled(inner, mode="saturation")
    applied = []
    for share in (0.9, 1.0, -0.9):
        apply(optimizer, [v], [share * largest / 8.0])  # 8 is the loss scale
        applied.append(bool(optimizer.last_step_finite))
    return [applied, float(v.numpy()), int(optimizer.iterations)]


@check
def accumulates_on_a_narrow_wire():
    """Sums are sent without the loss scale: bfloat16 is wide enough for them, float16 is not."""
    report = {}
    for compression in ("bf16", "fp16"):
        v = weight(0.0)
        inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer = scaled(inner, compression=compression)
        gradient = 1e-8 * size() if rank() == 0 else 0.0
        step = functools.partial(apply, optimizer, [v], [gradient])
        error = error_of(step) or error_of(step)
        report[compression] = [error, float(v.numpy())]
    return report
