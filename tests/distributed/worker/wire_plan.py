# SPDX-License-Identifier: Apache-2.0
"""What is sent: the dtype on the wire, and which variables travel together."""

import keras
import numpy as np
import tensorflow as tf
from harness import apply, check, digest, listed, rank, recorded, scaled, size, weight

import npu_keras
from npu_keras import buckets, distribute

SHAPES = [(3, 4), (5,), (), (300, 40), (7,), (2, 2, 2)]


def _variables(dtypes=("float32",)):
    rng = np.random.default_rng(3)
    return [
        weight(rng.standard_normal(shape), dtypes[i % len(dtypes)], f"v{i}")
        for i, shape in enumerate(SHAPES)
    ]


def _gradients(step):
    rng = np.random.default_rng([rank(), step])
    return [rng.standard_normal(shape) for shape in SHAPES]


def _trained(steps=2, dtypes=("float32",), **settings):
    """The variables after some steps, and what was sent in the last one."""
    variables, optimizer = _variables(dtypes), scaled(keras.optimizers.SGD(0.1), **settings)
    for step in range(steps):
        with recorded() as sent:
            apply(optimizer, variables, _gradients(step))
    gradients = [counts for kind, _, counts in sent if kind == "all_reduce"]
    decision = [4 * 0 + 5 * size() + len(SHAPES)]
    return variables, [counts for counts in gradients if counts != decision]


@check
def wire_dtypes():
    exact = np.concatenate([np.ravel(np.array(v)) for v in _trained()[0]])
    report = {}
    for compression in ("bf16", "fp16"):
        variables, _ = _trained(compression=compression)
        values = np.concatenate([np.ravel(np.array(v)) for v in variables])
        with recorded() as sent:
            apply(scaled(compression=compression), [weight()], [1.0])
        report[compression] = {
            "difference": float(np.abs(values - exact).max()),
            "weights": digest(variables),
            "wire": sorted({dtype for kind, dtype, _ in sent if kind == "all_reduce"}),
        }
    return report


@check
def eight_ranks_in_float16():
    """What each of 8 ranks sends of 20000 and of 1e-7, and what their sum is."""
    mean = npu_keras.GradientAggregation(compression="fp16")
    total = npu_keras.GradientAggregation("sum", compression="fp16")
    gradient = tf.constant([20000.0, 1e-7])
    sent, whole = mean.outgoing(gradient, 8), total.outgoing(gradient, 8)
    eighth = mean.outgoing(tf.IndexedSlices(gradient[:, None], [5, 5], [9, 1]), 8)
    lost = mean.lost_to_underflow([gradient, None, tf.constant([0.0, 1.0, 1e-7])], 8)
    return {
        "dtype": sent.dtype.name,
        "mean": float(tf.add_n([sent] * 8)[0]),
        "sum": float(tf.add_n([whole] * 8)[0]),
        "rows": [eighth.indices.numpy().tolist(), eighth.values.numpy().astype(float).tolist()],
        "lost": float(lost),
        "lost in float32": float(npu_keras.GradientAggregation().lost_to_underflow([gradient], 8)),
    }


@check
def underflow():
    """Gradients that float16 would lose survive by the loss scale they are sent with."""
    report = {}
    for scale in (1.0, 2.0**15):
        v = weight(0.0)
        manager = npu_keras.FixedLossScaleManager(scale)
        optimizer = scaled(keras.optimizers.SGD(1.0), scale_manager=manager, compression="fp16")
        apply(optimizer, [v], [1e-8])
        report[str(scale)] = float(v.numpy())
    return report


@check
def bucket_sizes():
    """From one variable a bucket to all in one: the same bits, and as many sends as planned."""
    report = {}
    for dtypes in (("float32",), ("float32", "float16")):
        for split in (1, 25 << 20, 1 << 40, None, [1, 3, 5], [60, 20, 20], 1000):
            variables, sent = _trained(dtypes=dtypes, split=split)
            settings = npu_keras.GradientAggregation(split=split)
            plan = settings.plan(variables, distribute.engine())
            members = sorted(i for bucket in plan.buckets for i in bucket.indices)
            report[f"{len(dtypes)} dtypes, {split}"] = {
                "weights": digest(variables),
                "sent": sent,
                "planned": [[_elements(i) for i in b.indices] for b in plan.buckets],
                "each once": members == list(range(len(SHAPES))),
            }
    return report


def _elements(index):
    return int(np.prod(SHAPES[index], dtype=int))


@check
def process_wide_splits():
    """By size goes before by index, an optimizer's own split before both."""
    counts = {}
    buckets.set_split_strategy_by_idx([0, 5])
    counts["idx"] = _trained(1)[1]
    buckets.set_split_strategy_by_size([50, 30, 20])
    counts["size over idx"] = _trained(1)[1]
    counts["own over both"] = _trained(1, split=1 << 40)[1]
    buckets.clear_split_strategy()
    counts["cleared"] = _trained(1)[1]
    return counts


@check
def wrong_index():
    """The last index must be that of the last gradient; all ranks say so."""
    try:
        _trained(1, split=[1, 7])
    except ValueError as error:
        return str(error)
    return None


@check
def described():
    return npu_keras.GradientAggregation(split=1000).describe(_variables())


@check
def last_layers_first():
    """Buckets are sent in the order in which backward makes gradients."""
    return _trained(1, split=1)[1]


@check
def sum_and_mean():
    v, w = weight(0.0), weight(0.0)
    apply(scaled(keras.optimizers.SGD(1.0)), [v], [1.0 + rank()])
    apply(scaled(keras.optimizers.SGD(1.0), reduction="sum"), [w], [1.0 + rank()])
    return listed([v, w])
