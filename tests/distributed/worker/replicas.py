# SPDX-License-Identifier: Apache-2.0
"""Checks under `MirroredStrategy` on two logical CPU devices, in one process."""

import contextlib
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from harness import INF, Watch, check, digest, error_of, events, manager, run, weight

import npu_keras

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


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


def _loop(optimizer, variables, gradients, make=lambda value: value):
    """Steps of `strategy.run`, one gradient for each replica; yields after each."""

    @tf.function(autograph=False)
    def step(per_replica):
        def replica(gradient):
            scaled = gradient * tf.convert_to_tensor(optimizer.loss_scale)
            optimizer.apply([make(scaled) for _ in variables], variables)

        STRATEGY.run(replica, args=(per_replica,))

    for values in gradients:
        step(_by_replica(values))
        yield


def _by_replica(values):
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group], tf.float32)
    )


def _steps(*arguments):
    for _ in _loop(*arguments):
        pass


def _scaled(inner, scale=8.0):
    optimizer = npu_keras.NPULossScaleOptimizer(inner, manager(scale))
    optimizer.scale_loss(0.0)
    return optimizer


@check
def custom_loop():
    with STRATEGY.scope():
        v = weight()
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        optimizer.build([v])
    report = []
    for _ in _loop(optimizer, [v], [(1, 2), (INF, 1), (1, INF), (INF, INF), (1, 1)]):
        replicas = STRATEGY.experimental_local_results(v.value)
        report.append([[float(r) for r in replicas], float(optimizer.loss_scale)])
    return {"steps": report, "events": events(optimizer)}


@check
def clipping_sees_the_sum():
    report = {}
    for name in ("global_clipnorm", "clipnorm"):
        with STRATEGY.scope():
            v = weight(0.0)
            optimizer = _scaled(keras.optimizers.SGD(1.0, **{name: 1.0}))
            optimizer.build([v])
        _steps(optimizer, [v], [(100.0, -0.2)])
        report[name] = float(v.numpy())
    return report


@check
def finite_gradients_with_an_infinite_sum():
    with STRATEGY.scope():
        v = weight()
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        optimizer.build([v])
    _steps(optimizer, [v], [(3e38 / 8, 3e38 / 8)])
    return {"weight": float(v.numpy()), "events": events(optimizer)}


@check
def accumulation():
    report = {}
    for name, k, gradients in (
        ("k steps", 2, [(1.0, 2.0), (INF, 0.0), (3.0, 4.0)] * 2),
        ("one step", None, [(2.0, 3.0)] * 2),
    ):
        with STRATEGY.scope():
            v = weight(0.0)
            inner = keras.optimizers.AdamW(0.1, gradient_accumulation_steps=k)
            optimizer = _scaled(inner)
            optimizer.build([v])
        _steps(optimizer, [v], gradients)
        report[name] = [float(v.numpy()), int(optimizer.iterations.numpy())]
    return report


@check
def averages_and_schedules():
    report = {}
    for name, scope in (("strategy", STRATEGY.scope), ("alone", contextlib.nullcontext)):
        with scope():
            v = weight(0.0)
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
            inner = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.5)
            optimizer = _scaled(inner)
            optimizer.build([v])
        if name == "strategy":
            _steps(optimizer, [v], [(0.5, 0.5), (INF, 0.5), (0.5, 0.5), (0.5, 0.5)])
        else:
            for gradient in (1.0, INF, 1.0, 1.0):
                optimizer.apply([tf.constant(gradient * float(optimizer.loss_scale))], [v])
        with scope():
            optimizer.finalize_variable_values([v])
        report[name] = [float(v.numpy()), float(optimizer.learning_rate)]
    return report


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
    _steps(optimizer, [v], [(INF, 1.0), (1.0, INF)])
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


@check
def outside_of_a_replica():
    with STRATEGY.scope():
        v = weight()
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        return error_of(lambda: optimizer.apply([tf.constant(1.0)], [v]))


@check
def rows():
    """IndexedSlices over replicas, with an overflow in the rows of replica 1."""
    with STRATEGY.scope():
        table = weight(np.ones((4, 2)))
        optimizer = _scaled(keras.optimizers.SGD(0.1))
        optimizer.build([table])

    def make(value):
        return tf.IndexedSlices(tf.fill([2, 2], value), tf.constant([1, 3]), tf.constant([4, 2]))

    report = []
    for _ in _loop(optimizer, [table], [(1, 2), (1, INF)], make):
        report.append(table.numpy().astype(float).tolist())
    return {"steps": report, "events": events(optimizer)}


@check
def sharding():
    """There are no ranks to own shares of the update."""
    with STRATEGY.scope():
        v, w = weight(), weight(name="w")
        optimizer = npu_keras.NPUDistributedOptimizer(
            keras.optimizers.SGD(0.1), is_weight_update_sharding=True
        )
        return error_of(lambda: optimizer.build([v, w]))


if __name__ == "__main__":
    run(ranks=False)
