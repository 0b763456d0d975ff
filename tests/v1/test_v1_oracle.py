# SPDX-License-Identifier: Apache-2.0
"""Runs of TensorFlow 1.15.5's loss-scaled optimizers, repeated with ours."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from loops import INF, WITHOUT_V2, Loop, scaled, session, v1

from npu_keras import ExponentialUpdateLossScaleManager, FixedLossScaleManager

DATA = Path(__file__).parent.parent / "data"
CASES = json.loads((DATA / "optimizers.json").read_text())["cases"]
INNER = {
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "momentum": lambda: v1.train.MomentumOptimizer(0.02, 0.9),
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.05),
}


def name(case):
    clip = f"-clip{case['global_clipnorm']}" if case["global_clipnorm"] else ""
    return f"{case['optimizer']}-{next(iter(case['manager'].values())):.0f}{clip}"


def make_manager(config):
    fixed = "loss_scale" in config
    return (FixedLossScaleManager if fixed else ExponentialUpdateLossScaleManager)(**config)


def squared_error(variables, x, y, blow_up):
    w, b = variables
    return tf.reduce_mean((tf.linalg.matvec(x, w) + b - y) ** 2) * blow_up


def clipping(norm):
    def clip(pairs):
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], norm)
        return list(zip(clipped, [variable for _, variable in pairs], strict=True))

    return clip if norm else list


@pytest.mark.parametrize("context", ["graph"] if WITHOUT_V2 else ["graph", "function"])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_step_of_tensorflow_1(case, context):
    if context == "function" and not WITHOUT_V2:  # what is traced is also run step by step
        context = "eager" if CASES.index(case) % 3 == 0 else "function"
    kind = "NPUOptimizer" if CASES.index(case) % 2 else "NPULossScaleOptimizer"

    def make():
        return scaled(INNER[case["optimizer"]](), make_manager(case["manager"]), kind)

    xs, ys = np.float32(case["x"]), np.float32(case["y"])
    loop = Loop(
        context,
        make,
        [case["w0"], case["b0"]],
        squared_error,
        [xs[0], ys[0], 1.0],
        clipping(case["global_clipnorm"]),
    )
    optimizer = loop.optimizer
    watched = [*loop.variables, optimizer.loss_scale, loop.global_step]
    for number, want in enumerate(case["trace"]):
        loop.step(xs[number], ys[number], INF if number in case["bad_steps"] else 1.0)
        w, b, scale, global_step = loop.read(watched)
        wanted = np.float32([*want["w"], want["b"]])
        atol = 1e-6 * np.abs(wanted).max()
        np.testing.assert_allclose([*w, b], wanted, rtol=0, atol=atol, err_msg=f"step {number}")
        assert scale == want["scale"]
        assert global_step == want["global_step"]
    skipped = [event.attempt - 1 for event in loop.journal() if event.skipped]
    assert skipped == case["bad_steps"]


def test_traces_of_managers_in_a_graph(graph):
    cases = json.loads((DATA / "managers.json").read_text())["cases"]
    finite = v1.placeholder(tf.bool, [len(cases)])
    updates, states, kept = [], [], []
    for number, case in enumerate(cases):
        manager = ExponentialUpdateLossScaleManager(**case["config"])
        optimizer = scaled(scale_manager=manager)
        kept.append(optimizer)
        updates.append(manager.update_loss_scale(finite[number]))
        states.append([manager.get_loss_scale(), optimizer.good_steps, optimizer.bad_steps])
    flags = np.array([case["finite"] for case in cases], bool).T
    want = [
        np.array(column, np.float64) for column in zip(*(c["trace"] for c in cases), strict=True)
    ]
    with session() as opened:
        for step, column in enumerate(want):
            new_scales = opened.run(updates, {finite: flags[step]})
            got = np.array(opened.run(states), np.float64)
            np.testing.assert_array_equal(got, column, err_msg=f"step {step}")
            np.testing.assert_array_equal(new_scales, column[:, 0])
