# SPDX-License-Identifier: Apache-2.0
"""The communication tail: what has arrived is applied while the rest is still on its way."""

import logging

import keras
import numpy as np
import tensorflow as tf
from harness import INF, apply, check, digest, events, manager, rank, scaled, size, weight

import npu_keras

SHAPES = [(3, 4), (5,), (2, 2), (7,)]


def _gradients(step, bad_in):
    rng = np.random.default_rng([rank(), step])
    gradients = [rng.standard_normal(shape).astype("float32") for shape in SHAPES]
    if bad_in is not None and rank() == size() - 1:
        gradients[bad_in][...] = INF
    return gradients


def _train(optimizer, bad_steps, steps=20, graph=True):
    """Twenty steps; returns exact digests of the weights, and of all, at the end."""
    rng = np.random.default_rng(7)
    variables = [weight(rng.standard_normal(s), name=f"v{i}") for i, s in enumerate(SHAPES)]
    optimizer.build(variables)

    def step(gradients):
        apply(optimizer, variables, gradients)

    step = tf.function(step, autograph=False) if graph else step

    for number in range(steps):
        before = digest([*variables, optimizer.iterations])
        step([tf.constant(g) for g in _gradients(number, bad_steps.get(number))])
        if number in bad_steps:
            assert digest([*variables, optimizer.iterations]) == before, "a bad step was applied"
    return {
        "weights": digest(variables),
        "all": digest(optimizer.variables),
        "iterations": int(optimizer.iterations),
        "skipped": int(optimizer.skipped_steps),
        "scale": float(optimizer.loss_scale),
    }


@check
def tail_on_and_off():
    """An overflow in the bucket that arrives last, in the first, and in between."""
    bad = {3: 0, 4: len(SHAPES) - 1, 11: 1}
    narrow = {"split": 1, "compression": "fp16"}
    cases = {
        "SGD": (lambda: keras.optimizers.SGD(0.05, momentum=0.9), {"split": 1}, False),
        "AdamW": (lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0), {"split": 1}, True),
        "Nadam, fp16": (lambda: keras.optimizers.Nadam(0.01), narrow, False),
    }
    return {
        name: [
            _train(scaled(make(), tail=tail, **settings), bad, graph=graph)
            for tail in (False, True)
        ]
        for name, (make, settings, graph) in cases.items()
    }


@check
def updates_of_a_step():
    """Which variables each call of the inner optimizer updates."""
    report = {}
    for tail in (False, True):
        inner, calls = keras.optimizers.SGD(0.05), []
        variables = [weight(1.0, name=f"v{i}") for i in range(3)]
        optimizer = scaled(inner, tail=tail, split=1)
        optimizer.build(variables)
        apply_inner = inner.apply

        def noting(gradients, trainable_variables, apply_inner=apply_inner, calls=calls):
            calls.append(sorted(v.name for v in trainable_variables))
            apply_inner(gradients, trainable_variables)

        vars(inner)["apply"] = noting
        apply(optimizer, variables, [1.0] * 3)
        report["on" if tail else "off"] = [calls, int(optimizer.iterations)]
    return report


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@check
def nothing_to_overlap():
    """Where an update needs everything, the tail says so once and the weights stay right."""
    cases = {
        "global_clipnorm": {"global_clipnorm": 0.5},
        "EMA": {"use_ema": True},
        "accumulation": {"gradient_accumulation_steps": 2},
    }
    report = {}
    logger = logging.getLogger("npu_keras")
    logger.setLevel(logging.INFO)
    for name, settings in cases.items():
        handler = _Lines()
        logger.addHandler(handler)
        both = [
            _train(
                scaled(keras.optimizers.Adam(0.01, **settings), tail=tail, split=1),
                {3: 0},
                6,
                False,
            )
            for tail in (False, True)
        ]
        logger.removeHandler(handler)
        said = [line for line in handler.lines if "tail" in line]
        report[name] = {"equal": both[0] == both[1], "said": said}
    return report


@check
def tail_without_ranks():
    """Without `is_distributed` the flag is ignored, with one line in the log."""
    handler, logger = _Lines(), logging.getLogger("npu_keras")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    optimizer = npu_keras.NPUOptimizer(
        keras.optimizers.SGD(0.1), manager(), is_loss_scale=True, is_tailing_optimization=True
    )
    optimizer.scale_loss(0.0)
    v = weight()
    for _ in range(3):
        apply(optimizer, [v], [1.0])
    logger.removeHandler(handler)
    return {"weight": float(v.numpy()), "said": handler.lines}


@check
def cast_overflow_with_tail():
    """The cast for the wire overflows in one bucket on one rank: nobody writes anything."""
    v, w = weight(name="v"), weight(name="w")
    optimizer = scaled(tail=True, split=1, compression="fp16")
    apply(optimizer, [v, w], [4e4 * size() if rank() == 0 else 1.0, 1.0])
    return {
        "weights": digest([v, w]),
        "untouched": digest([weight(), weight()]),
        "events": events(optimizer),
    }


@check
def sum_overflow_with_tail():
    v, w = weight(name="v"), weight(name="w")
    optimizer = scaled(tail=True, split=1, compression="fp16", reduction="sum")
    apply(optimizer, [v, w], [5000.0, 1.0])
    return {
        "weights": digest([v, w]),
        "untouched": digest([weight(), weight()]),
        "events": events(optimizer),
    }
