# SPDX-License-Identifier: Apache-2.0
"""Gradients of a few rows: gathered, never made dense, equal to the dense way."""

import keras
import numpy as np
import tensorflow as tf
from harness import apply, check, digest, listed, rank, recorded, scaled, size, weight

ROWS, WIDTH, IDS = 100_000, 8, 200


@check
def gathered_rows():
    """Nine of ten ids are repeated."""
    unique = np.random.default_rng(rank()).choice(ROWS, IDS // 10, replace=False)
    ids = np.random.default_rng(9).permutation(np.tile(unique, 10))
    report = {"unique": len(unique), "sent": None}
    tables = {}
    for sparse in ("gather", "dense"):
        keras.utils.set_random_seed(0)
        table = weight(np.full((ROWS, WIDTH), 0.5), name="table")
        optimizer = scaled(keras.optimizers.SGD(0.1), sparse=sparse)
        for _ in range(2):
            with tf.GradientTape() as tape:
                rows = tf.gather(table.value, ids)
                loss = optimizer.scale_loss(tf.reduce_mean(tf.square(rows)))
            gradient = tape.gradient(loss, table.value)
            with recorded() as sent:
                optimizer.apply([gradient], [table])
        if sparse == "gather":
            report["sent"] = sent
        tables[sparse] = np.array(table)
        report[sparse] = digest([table])
    report["difference"] = float(np.abs(tables["gather"] - tables["dense"]).max())
    report["moved rows"] = int((tables["gather"] != 0.5).any(axis=1).sum())
    return report


@check
def nobody_has_a_row():
    table, optimizer = weight(np.ones((4, 2))), scaled()
    rows = tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int64), tf.constant([4, 2]))
    if rank() == 0:
        rows = tf.IndexedSlices(tf.ones([2, 2]), [1, 1], [4, 2])
    apply(optimizer, [table], [rows])
    none = tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int64), tf.constant([4, 2]))
    apply(optimizer, [table], [none])
    return {"table": listed([table]), "applied": bool(optimizer.last_step_finite)}


@check
def tied_embedding():
    """One table looks words up and scores them: its gradient is rows plus a matrix."""
    report = {}
    for sparse in ("gather", "dense"):
        table = weight(np.linspace(0, 1, 12).reshape(6, 2), name="table")
        optimizer = scaled(keras.optimizers.SGD(0.1), sparse=sparse)
        with tf.GradientTape() as tape:
            hidden = tf.gather(table.value, [1, 1, 2 + rank()])
            logits = tf.matmul(hidden, table.value, transpose_b=True)
            loss = optimizer.scale_loss(tf.reduce_mean(tf.square(logits)))
        optimizer.apply([tape.gradient(loss, table.value)], [table])
        report[sparse] = digest([table])
    return report


@check
def dense_here_rows_there():
    """One rank has rows, the other a matrix: all send a matrix."""
    table, optimizer = weight(np.ones((3, 2))), scaled(keras.optimizers.SGD(1.0))
    rows = tf.IndexedSlices(tf.ones([2, 2]), [1, 1], [3, 2])
    apply(optimizer, [table], [rows if rank() == 0 else 1.0])
    return listed([table])


@check
def rows_given_twice():
    """A variable that appears twice in one step gets both gradients."""
    table, optimizer = weight(np.ones((3, 2))), scaled(keras.optimizers.SGD(1.0))
    rows = tf.IndexedSlices(tf.ones([1, 2]) * size(), [1], [3, 2])
    other = tf.IndexedSlices(tf.ones([1, 2]) * size(), [2], [3, 2])
    none = tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int32), tf.constant([3, 2]))
    with recorded() as sent:
        both = [rows, other] if rank() == 0 else [none, none]
        apply(optimizer, [table, table], both)
    kinds = sorted({entry[0] for entry in sent if entry[0] == "all_gather" or 6 in entry[2]})
    return {"table": listed([table]), "kinds": kinds}


@check
def rows_on_a_narrow_wire():
    """Rows of several ranks are added in the variable's dtype: bfloat16 has no 128.5."""
    table, optimizer = (
        weight(np.zeros((2, 1))),
        scaled(keras.optimizers.SGD(1.0), compression="bf16"),
    )
    value = 256.0 if rank() == 0 else 1.0
    apply(optimizer, [table], [tf.IndexedSlices(tf.fill([1, 1], value), [1], [2, 1])])
    return listed([table])
