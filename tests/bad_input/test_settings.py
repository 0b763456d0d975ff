# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of managers and of the settings of aggregation."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from rows import check, manager, row, sgd, table

from npu_keras import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    GradientAggregation,
    LossScaleManager,
    NPUOptimizer,
    NPURunConfig,
    set_split_strategy_by_idx,
    set_split_strategy_by_size,
)

pytestmark = pytest.mark.tf

HUGE = 10**400
KO = tf_keras.optimizers


def fixed(*args, **kwargs):
    return lambda: FixedLossScaleManager(*args, **kwargs)


def growing(*args, **kwargs):
    return lambda: ExponentialUpdateLossScaleManager(*args, **kwargs)


RANGE = "between 1.0 and 3.4"
MANAGERS = [
    *(
        row(f"scale {value!r:.12}", fixed(value), TypeError, "`loss_scale` must be a number")
        for value in ("8", None, True, [8], 8j, tf.constant(8.0), np.ones(1))
    ),
    *(
        row(f"scale {value!r:.12}", fixed(value), ValueError, "`loss_scale`", RANGE)
        for value in (0.5, 0, -8, float("nan"), float("inf"), 1e39, HUGE)
    ),
    row("no scale", fixed(), TypeError, "FixedLossScaleManager", "'loss_scale'"),
    row("misspelt scale", fixed(loss_scal=8), TypeError, "'loss_scal'"),
    row("check as text", fixed(8, "no"), TypeError, "`enable_overflow_check` must be a bool"),
    row("no interval", growing(8), TypeError, "'incr_every_n_steps'"),
    row("interval 0", growing(8, 0), ValueError, "`incr_every_n_steps`", "between 1 and"),
    row("interval 1.5", growing(8, 1.5), ValueError, "`incr_every_n_steps`", "an integer"),
    row("interval text", growing(8, "2"), TypeError, "`incr_every_n_steps`"),
    row("interval huge", growing(8, 2**31), ValueError, "2147483647"),
    row("back-off 0", growing(8, 2, 0), ValueError, "`decr_every_n_nan_or_inf`"),
    row("growth 1", growing(8, 2, incr_ratio=1), ValueError, "`incr_ratio`", "excluded"),
    row("decrease 1", growing(8, 2, decr_ratio=1), ValueError, "`decr_ratio`", "excluded"),
    row("decrease 0", growing(8, 2, decr_ratio=0), ValueError, "`decr_ratio`"),
    row("misspelt ratio", growing(8, 2, incr_raito=2), TypeError, "'incr_raito'"),
    row("floor 0", growing(8, 2, min_loss_scale=0), ValueError, "`min_loss_scale`"),
    row("floor denormal", growing(8, 2, min_loss_scale=1e-40), ValueError, "`min_loss_scale`"),
    row("ceiling low", growing(8, 2, max_loss_scale=4), ValueError, "`init_loss_scale`", "bounds"),
    row(
        "crossed bounds",
        growing(8, 2, min_loss_scale=9, max_loss_scale=4),
        ValueError,
        "`max_loss_scale`",
        "between 9.0",
    ),
    row("abstract manager", lambda: LossScaleManager(), TypeError, "abstract"),
    row(
        "unbound manager",
        lambda: manager().update_loss_scale(True),
        RuntimeError,
        "keeps no state of its own",
        "next_state",
    ),
    row(
        "changed manager",
        lambda: setattr(manager(), "loss_scale", 4),
        AttributeError,
        "cannot change after construction",
    ),
    row(
        "config of a manager", lambda: FixedLossScaleManager.from_config("x"), TypeError, "mapping"
    ),
    row(
        "unknown field",
        lambda: FixedLossScaleManager.from_config({"loss_scale": 8, "evil": 1}),
        TypeError,
        "'evil'",
    ),
]


@table(MANAGERS)
def test_managers(bad):
    check(bad)


def settings(**given):
    return lambda: GradientAggregation(**given)


def from_config(config):
    return lambda: GradientAggregation.from_config(config)


SETTINGS = [
    *(
        row(f"{name} {value!r:.20}", settings(**{name: value}), ValueError, f"`{name}`", words)
        for name, words, values in (
            ("reduction", "('mean', 'sum')", ("avg", None, ["mean"], {})),
            ("compression", "'bf16', 'fp16'", ("fp8", 16, [])),
            ("sparse", "('gather', 'dense')", ("none", 1)),
            ("engine", "'mpi', 'collective'", ("mpl", 3, [])),
            ("timeout_s", "above 0", (0, -1, "1", None, True, float("nan"))),
            ("split", "`split`", ("all", True, {}, [10, 90], [3, 2], [60, 60], [])),
        )
        for value in values
    ),
    row("split 0", settings(split=0), ValueError, "1 or more"),
    row("split huge list", settings(split=list(range(9))), ValueError, "1 to 8"),
    row("initial as text", settings(broadcast_initial="no"), TypeError, "`broadcast_initial`"),
    row("misspelt reduction", settings(reducton="mean"), TypeError, "'reducton'"),
    row("config no dict", from_config([1]), TypeError, "Expected a config"),
    row("config unknown", from_config({"evil": 1}), TypeError, "'evil'"),
    *(
        row(f"strategy {name!r}", from_config({"split": {"strategy": name}}), ValueError, "`split`")
        # Functions and modules that stand where the strategies are.
        for name in ("clear_split_strategy", "parse_split", "__loader__", "dataclass", 3, None)
    ),
    row("describe a number", lambda: GradientAggregation().describe(3), TypeError, "list"),
    row("describe numbers", lambda: GradientAggregation().describe([1]), TypeError, "variables"),
    row("describe a model", lambda: GradientAggregation().describe(None), TypeError, "list"),
    row(
        "underflow of nothing",
        lambda: GradientAggregation().lost_to_underflow([None], 1),
        ValueError,
        "at least one gradient",
    ),
    row(
        "underflow of text",
        lambda: GradientAggregation().lost_to_underflow(["x"], 1),
        TypeError,
        "gradient",
    ),
    *(
        row(f"idx {value!r:.20}", lambda v=value: set_split_strategy_by_idx(v), ValueError, words)
        for value, words in (
            (None, "1 to 8"),
            ([], "1 to 8"),
            ("12", "1 to 8"),
            ([1, 1], "ascending"),
            ([True], "integers"),
            ([-1, 2], "integers"),
            ([2**32], "2**32 - 1"),
        )
    ),
    *(
        row(f"size {value!r:.20}", lambda v=value: set_split_strategy_by_size(v), ValueError, words)
        for value, words in (
            (None, "1 to 8"),
            ([50, 51], "sum to 100"),
            ([-1, 101], "at least 0"),
            (["50", "50"], "numbers"),
            ([float("nan"), 100], "numbers"),
            ([1e400, 1], "sum to 100"),
        )
    ),
    row("group ''", lambda: set_split_strategy_by_idx([1], ""), ValueError, "`group`"),
    row("group 3", lambda: set_split_strategy_by_idx([1], 3), ValueError, "`group`"),
    row(
        "run config text",
        lambda: NPURunConfig(is_tailing_optimization="no"),
        TypeError,
        "`is_tailing_optimization` must be True or False",
    ),
    row("run config misspelt", lambda: NPURunConfig(is_tailing=True), TypeError, "'is_tailing'"),
]


@table(SETTINGS)
def test_settings(bad):
    check(bad)


def test_extreme_settings_that_are_right():
    assert GradientAggregation(timeout_s=HUGE).timeout_s == float("inf")
    assert GradientAggregation(split=10**30).get_config()["split"]["value"] == 10**30
    assert GradientAggregation(broadcast_initial=np.bool_(False)).broadcast_initial is False
    assert NPUOptimizer(sgd(), is_distributed=1).is_distributed is True
