# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of callbacks, figures, collectives, settings of a cluster and commands."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from rows import check, manager, row, scaled, sgd, table, variable

import npu_keras
from npu_keras import NPULossScaleOptimizer, callbacks, cli, cluster, distribute, plotting
from npu_keras.ascend import collectives, ops, sessions
from npu_keras.ascend.optimizers import NPUOptimizer as AscendOptimizer
from npu_keras.ascend.saturation import saturating
from npu_keras.ascend.tf2_optimizer import NpuLossScaleOptimizer
from npu_keras.events import Event
from npu_keras.gradient_range import GradientRange
from npu_keras.products import find, resolve_mode, set_product

pytestmark = pytest.mark.tf

EVENTS = [Event(1, "skip", 8.0, 4.0)]


def model(optimizer="sgd", built=True):
    layers = [keras.layers.Input([2])] if built else []
    made = keras.Sequential([*layers, keras.layers.Dense(1)])
    made.compile(optimizer, "mse")
    return made


def fit(callback, **given):
    def run():
        model(**given).fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0, callbacks=[callback()])

    return run


def call(name, *args, **kwargs):
    return lambda: getattr(callbacks, name)(*args, **kwargs)


NEED_OURS = ("LossScaleLogger", "OverflowGuard", "DistributionReport", "LossScalePlot")
CALLBACKS = [
    *(row(f"{n} misspelt", call(n, evry=3), TypeError, "'evry'") for n in callbacks.__all__),
    *(
        row(f"{n} elsewhere", fit(call(n)), ValueError, n, "optimizer of npu_keras")
        for n in NEED_OURS
    ),
    *(
        row(f"{n} without a model", lambda n=n: call(n)().on_train_begin(), ValueError, n)
        for n in NEED_OURS
    ),
    *(
        row(f"{n} too early", lambda n=n: call(n)().on_epoch_begin(0), RuntimeError, "no training")
        for n in NEED_OURS[:2]
    ),
    *(
        row(f"log_freq {value!r}", call("LossScaleLogger", value), ValueError, "`log_freq`")
        for value in (0, "batch", 1.5, None, True)
    ),
    row("jsonl", call("LossScaleLogger", jsonl=3), TypeError, "`jsonl` must be a path"),
    row("no jsonl", call("LossScaleLogger", jsonl=""), ValueError, "`jsonl`", "not empty"),
    row("log_dir", call("LossScaleLogger", log_dir=3), TypeError, "`log_dir` must be a path"),
    row("prefix", call("LossScaleLogger", prefix=None), TypeError, "`prefix`", "str"),
    row("verbose", call("LossScaleLogger", verbose="no"), TypeError, "`verbose`"),
    row("skips", call("OverflowGuard", 0), ValueError, "`max_consecutive_skips`"),
    row("rate", call("OverflowGuard", max_overflow_rate=1), ValueError, "`max_overflow_rate`"),
    row("window", call("OverflowGuard", window=0), ValueError, "`window`"),
    row("action", call("OverflowGuard", action="abort"), ValueError, "('warn', 'stop', 'raise')"),
    row("on_floor", call("OverflowGuard", on_floor=None), ValueError, "`on_floor`"),
    row("every 0", call("DistributionReport", 0), ValueError, "`every`"),
    row("no result", lambda: callbacks.DistributionReport().summary(), RuntimeError, "no training"),
    row(
        "no weights yet",
        fit(
            callbacks.DistributionReport,
            optimizer=NPULossScaleOptimizer(sgd(), manager()),
            built=False,
        ),
        ValueError,
        "model.build(input_shape)",
    ),
    row("seconds", call("LossScalePlot", float("nan")), ValueError, "`every_s`"),
    row("no limit", call("StepLimit"), ValueError, "steps=None"),
    row("limit text", call("StepLimit", "10"), ValueError, "`steps`"),
    row("check every", call("ConsistencyCheck", 0), ValueError, "`every`"),
    row("root", call("BroadcastVariables", -1), ValueError, "`root_rank`"),
    row("no model", lambda: npu_keras.unscaled_optimizers(None), TypeError, "`model` must be"),
    row("optimizer", lambda: npu_keras.unscaled_optimizers(sgd()), TypeError, "`model` must be"),
]


@table(CALLBACKS)
def test_callbacks(bad):
    check(bad)


def counts(scale=8.0, names=("k",), columns=3):
    zeros = np.zeros(1, int)
    return GradientRange(names, np.arange(-3, 0), np.ones((1, columns), int), zeros, zeros, scale)


FIGURES = [
    *(
        row(f"{draw.__name__} {source!r:.12}", lambda d=draw, s=source: d(s), TypeError, "`source`")
        for draw in (plotting.plot_loss_scale, plotting.plot_overflow_by_variable)
        for source in (None, 3, [1, 2], {}, b"x", object(), sgd())
    ),
    row("no file", lambda: plotting.plot_loss_scale("no.jsonl"), FileNotFoundError, "no.jsonl"),
    row("no csv", lambda: plotting.plot_loss_scale("no.csv"), FileNotFoundError, "no.csv"),
    *(
        row(
            f"losses {losses!r}",
            lambda x=losses: plotting.plot_loss_scale(EVENTS, losses=x),
            ValueError,
            "`losses` must be",
        )
        for losses in ("x", [[1, 2]], {"a": 1}, 3.0)
    ),
    row("range None", lambda: plotting.plot_gradient_range(None), TypeError, "`report`"),
    *(
        row(
            f"scale {s!r}", lambda s=s: plotting.plot_gradient_range(counts(s)), ValueError, "above"
        )
        for s in (0, -1.0, float("nan"), float("inf"), "8", None)
    ),
    row(
        "two names for one row",
        lambda: plotting.plot_gradient_range(counts(names=("a", "b"))),
        ValueError,
        "2 variables",
    ),
    row(
        "other columns",
        lambda: plotting.plot_gradient_range(counts(columns=7)),
        ValueError,
        "3 exponents",
        "(1, 7)",
    ),
    row("no figure", lambda: plotting.save(None, "x.png"), TypeError, "`figure`"),
    row("no path", lambda: plotting.save(FIGURE, None), TypeError, "`path`"),
    row("dpi 0", lambda: plotting.save(FIGURE, "x.png", dpi=0), ValueError, "`dpi`"),
    row("dpi text", lambda: plotting.save(FIGURE, "x.png", dpi="a"), TypeError, "`dpi`"),
    row("ending", lambda: plotting.save(FIGURE, "x.exe"), ValueError, "exe", "png"),
]
FIGURE = plotting.plot_loss_scale(EVENTS)


@table(FIGURES)
def test_figures(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(bad)


DATA = tf.data.Dataset.range(4)
COLLECTIVES = [
    *(
        row(
            f"engine {name!r}", lambda n=name: distribute.engine(n), ValueError, "name of an engine"
        )
        for name in ("mpl", 3, ["mpi"])
    ),
    *(
        row(f"time-out {t!r}", lambda t=t: distribute.engine(timeout_s=t), ValueError, "timeout_s")
        for t in (-1, "5", None, float("nan"))
    ),
    row("reduction", lambda: distribute.all_reduce(1.0, "avg"), ValueError, "`reduction`", "mean"),
    *(
        row(f"reduce {v!r:.12}", lambda v=v: distribute.all_reduce(v), TypeError, word)
        for v, word in (
            ("x", "string"),
            (True, "bool"),
            (1j, "complex"),
            ({"a": 1.0}, "`values`"),
            (object(), "`values`"),
        )
    ),
    *(
        row(f"broadcast {v!r:.12}", lambda v=v: distribute.broadcast(v), TypeError, "`variables`")
        for v in (None, [1], "ab", variable(), [tf.constant(1.0)])
    ),
    *(
        row(
            f"root {root!r}",
            lambda r=root: distribute.broadcast([variable()], r),
            ValueError,
            "root_rank",
        )
        for root in (5, -1, "0", None)
    ),
    row("no dataset", lambda: distribute.shard_and_rebatch_dataset([], 4), TypeError, "`dataset`"),
    *(
        row(
            f"batch {size!r}",
            lambda s=size: distribute.shard_and_rebatch_dataset(DATA, s),
            error,
            "`global_batch_size`",
        )
        for size, error in ((0, ValueError), (-4, ValueError), (1.5, ValueError), ("4", TypeError))
    ),
    row("equal steps", lambda: distribute.equal_steps([1]), TypeError, "`dataset`"),
    row("endless", lambda: distribute.equal_steps(DATA.repeat()), ValueError, "infinite"),
    row("hook", lambda: npu_keras.v1.broadcast_global_variables(), RuntimeError, "to a graph"),
]


@table(COLLECTIVES)
def test_collectives(bad):
    check(bad)


NESTED = {"TF_CONFIG": "[" * 100_000}
CLUSTERS = [
    ({"RANK_ID": "x", "RANK_SIZE": "2"}, "RANK_ID='x'"),
    ({"RANK_ID": "9" * 5000, "RANK_SIZE": "2"}, "digits"),
    ({"RANK_ID": "2", "RANK_SIZE": "2"}, "not including"),
    ({"RANK_SIZE": "2"}, "RANK_ID is not set"),
    ({"PMI_RANK": "0"}, "PMI_RANK and PMI_SIZE together"),
    ({"TF_CONFIG": "{"}, "TF_CONFIG to be JSON"),
    (NESTED, "TF_CONFIG to be JSON"),
    ({"TF_CONFIG": '{"cluster": 3, "task": 4}'}, "TF_CONFIG to be JSON"),
    ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"index": 5}}'}, "one of its cluster"),
]


@table(row(f"{e!r:.30}", lambda e=e: cluster.find(e), ValueError, word) for e, word in CLUSTERS)
def test_clusters(bad):
    check(bad)


PRODUCTS = [
    row("product", lambda: find(None), ValueError, "Atlas A2 training series"),
    row("set product", lambda: set_product("Atlas 9000"), ValueError, "'Atlas 9000'"),
    row("unsupported", lambda: set_product("Atlas inference series"), ValueError, "not supported"),
    row("mode", lambda: resolve_mode("inf_nan", "Atlas training series"), ValueError, "mode"),
    row("fusion", lambda: collectives.all_reduce(1.0, "mean", 7), ValueError, "`fusion`"),
    row("group", lambda: collectives.all_reduce(1.0, group="g"), ValueError, "hccl_world_group"),
    row("gather", lambda: collectives.allgather(tf.ones(2), 5), ValueError, "`rank_size`"),
    row("mean", lambda: collectives.allreduce(1.0, "mean"), ValueError, "has no mean"),
    row("around None", lambda: AscendOptimizer(None), TypeError, "`opt` must be"),
    row("float32 model", lambda: saturating(model()).__enter__(), ValueError, "float16"),
    row("around Keras 3", lambda: NpuLossScaleOptimizer(sgd()), TypeError, "tf_keras"),
    row("unknown name", lambda: npu_keras.ascend.saturate, AttributeError, "'saturate'"),
    row("reduce None", lambda: collectives.allreduce(None, "sum"), TypeError, "`tensor` must be"),
    row("gather a scalar", lambda: collectives.allgather(1.0, 1), ValueError, "one axis at least"),
    row(
        "scatter a scalar",
        lambda: collectives.reduce_scatter(tf.constant(1.0), "sum", 1),
        ValueError,
        "one axis at least",
    ),
    row(
        "broadcast a variable",
        lambda: collectives.broadcast_tensors(tf.Variable([1.0]), 0),
        TypeError,
        "`tensor` must be a list",
    ),
    row(
        "broadcast text",
        lambda: collectives.broadcast_tensors([object()], 0),
        TypeError,
        "Each of `tensor`",
    ),
    row(
        "root",
        lambda: collectives.reduce_to_root(tf.ones(2), "sum", 3),
        ValueError,
        "root_rank to be from 0 to 0",
    ),
    row("no model", lambda: saturating(None).__enter__(), TypeError, "Expected a model"),
    row("gelu of nothing", lambda: ops.gelu(None), TypeError, "`x` must be a floating tensor"),
    row("gelu of integers", lambda: ops.fast_gelu([1, 2]), TypeError, "int32"),
    row("dropout of text", lambda: ops.dropout("x", 0.5), TypeError, "string"),
    row("config", lambda: sessions.npu_config_proto(5), TypeError, "`config_proto` must be"),
    row("graph options", lambda: sessions.npu_graph_options(5), TypeError, "GraphOptions"),
    row("no session", lambda: sessions.close_session(5), TypeError, "`sess` must be a session"),
    row("session class", lambda: sessions.shutdown_resource(V1S, None), TypeError, "`sess`"),
]
V1S = tf.compat.v1.Session


def test_a_scatter_of_rows_that_do_not_divide(monkeypatch):
    monkeypatch.setattr(collectives.distribute, "size", lambda: 2)
    with pytest.raises(ValueError, match="divisible by the number of ranks, 2"):
        collectives.reduce_scatter(tf.ones((3, 1)), "sum", 2)


@table(PRODUCTS)
def test_ascend(bad):
    check(bad)


COMMANDS = {
    "rnu": "invalid choice: 'rnu'",
    "run": "required: script",
    "run -n 0 x.py": "expected 1 or more",
    "run -n two x.py": "invalid",
    f"run -n {10**50} x.py": "expected at most",
    "run -n 2 no.py": "which does not exist",
    "run --engine nccl x.py": "invalid choice: 'nccl'",
    "run --steps -1 x.py": "expected 1 or more",
    "run --timeout -1 x.py": "seconds, 0 or more",
    "run --timeout nan x.py": "seconds, 0 or more",
    "run --grace inf x.py": "seconds, 0 or more",
    "run --hosts a,,b -m x": "names or addresses",
    "run --hosts a,b -n 3 -m x": "multiple",
    "run --engine collective -n 900000 -m x": "Start fewer ranks",
    "report": "required: events",
    "report no.jsonl": "no.jsonl: No such file",
    "report --otput x": "unrecognized arguments: --otput",
    "doctor --x": "unrecognized arguments: --x",
    "demo --epochs x": "--epochs",
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command:.24}")
def test_commands(command, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        status = cli.main(command.split())
    except SystemExit as end:
        status = end.code
    assert status in (1, 2)
    assert COMMANDS[command] in capfd.readouterr().err


def test_events_that_are_kept_no_more_or_not_yet_are_left_out():
    journal = scaled().journal
    assert journal.events(0, 600) == journal.events(-5, 2) == []
