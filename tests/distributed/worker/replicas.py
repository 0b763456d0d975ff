# SPDX-License-Identifier: Apache-2.0
"""The script of the checks under `MirroredStrategy`, with those of `fit` and of saving."""

import pathlib
import tempfile

import keras
import numpy as np
import replica_loops  # noqa: F401
from harness import INF, Watch, check, digest, error_of, events, manager, run, weight
from mirrored import STRATEGY, run_steps

import npu_keras


class Scaled(npu_keras.LossScaleMixin, keras.optimizers.Adam):
    pass


MAKE = {
    "wrapper": lambda mode, **s: npu_keras.NPUOptimizer(
        keras.optimizers.Adam(0.01, **s), manager(), is_loss_scale=True, overflow_mode=mode
    ),
    "mixin": lambda mode, **s: Scaled(0.01, loss_scale_manager=manager(), overflow_mode=mode, **s),
}
BAD_REPLICAS = [(), (0,), (1,), (0, 1), ()]


def _fit(kind, mode, policy, bad_input):
    keras.config.set_dtype_policy(policy)
    inputs = [
        bad_input(step) if replica in bad else 1.0
        for step, bad in enumerate(BAD_REPLICAS)
        for replica in (0, 1)
    ]
    x, y = np.float32(inputs)[:, None], np.ones((len(inputs), 1), "float32")
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3, use_bias=False)])
        optimizer = MAKE[kind](mode)
        # Each replica has a batch of one; its gradient is the scale times its input, and Keras
        # divides the loss by the number of replicas.
        model.compile(optimizer, loss=lambda y, p: 2.0 * keras.ops.sum(p, axis=-1))
    watch = Watch(optimizer)
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[watch])
    kernel = model.layers[0].kernel.value
    replicas = [digest([each]) for each in STRATEGY.experimental_local_results(kernel)]
    return {"steps": watch.steps, "events": events(optimizer), "replicas": replicas}


def _register(kind, mode, policy, bad_input):
    def fit():
        return _fit(kind, mode, policy, bad_input)

    fit.__name__ = f"fit_{kind}_{mode}"
    check(fit)


for _kind in MAKE:
    _register(_kind, "inf_nan", "float32", lambda step: INF)
    # 65504 for the scales 8, 8, 4 and 4 of the steps.
    _register(_kind, "saturation", "mixed_float16", lambda step: 8188.0 * 2 ** ((step - 1) // 2))


def _apart(first, second):
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def _normalized(bad_row):
    keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        optimizer = MAKE["wrapper"]("inf_nan")
        model.compile(optimizer, loss="mse")
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    x[bad_row, 1] = INF
    return model, x


@check
def protected():
    """Statistics and the mean of the loss survive a skipped step of either replica."""
    report = {}
    for name, row in (("replica 0", 8), ("replica 1", 12)):
        model, x = _normalized(row)
        logger = npu_keras.callbacks.LossScaleLogger(verbose=0)
        history = model.fit(x, x[:, :1], batch_size=8, shuffle=False, verbose=0, callbacks=[logger])
        good = np.delete(x, range(8, 16), axis=0)
        clean, _ = _normalized(row)
        expected = clean.fit(good, good[:, :1], batch_size=8, shuffle=False, verbose=0)
        report[name] = {
            "skipped": int(model.optimizer.skipped_steps),
            "apart": _apart(model, clean),
            "loss": [history.history["loss"][0], expected.history["loss"][0]],
        }
    return report


@check
def reading_state():
    with STRATEGY.scope():
        optimizer = MAKE["wrapper"]("inf_nan")
        inside = [float(optimizer.loss_scale), np.array(optimizer.loss_scale).tolist()]
        v = weight()
        optimizer.build([v])
    optimizer.scale_loss(0.0)
    before = float(optimizer.loss_scale), int(optimizer.skipped_steps)
    run_steps(optimizer, [v], [(INF, 1.0), (1.0, INF)])
    snapshot = optimizer.journal.snapshot()
    after = float(optimizer.loss_scale), int(optimizer.skipped_steps)
    return {
        "inside": inside,
        "before": before,
        "after": after,
        "finite": bool(optimizer.last_step_finite),
        "snapshot": [snapshot.loss_scale, snapshot.skipped_steps],
        "array": np.array(optimizer.loss_scale).tolist(),
        "overflows": list(optimizer.journal.overflows_by_variable().values()),
    }


@check
def saved_and_loaded():
    """Loaded under the strategy and without it, training goes on as it would have."""
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(MAKE["wrapper"]("inf_nan"), loss="mse")
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    bad = x.copy()
    bad[12] = INF
    model.fit(bad, x[:, :2], batch_size=8, shuffle=False, verbose=0)
    path = pathlib.Path(tempfile.mkdtemp()) / "model.keras"
    model.save(path)
    alone = keras.models.load_model(path)
    with STRATEGY.scope():
        loaded = keras.models.load_model(path)
    state = [digest(each.optimizer.variables) for each in (model, loaded, alone)]
    for each in (model, loaded, alone):
        each.fit(x, x[:, :2], batch_size=8, shuffle=False, verbose=0)
    skipped = int(loaded.optimizer.skipped_steps)
    return {
        "state": state,
        "apart": [_apart(model, each) for each in (loaded, alone)],
        "skipped": skipped,
    }


@check
def compiled_by_xla():
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(MAKE["wrapper"]("inf_nan"), loss="mse", jit_compile=True)
    return error_of(lambda: model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=4, verbose=0))


if __name__ == "__main__":
    run(ranks=False)
