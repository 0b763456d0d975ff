# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of optimizers and mixins, and wrong nesting, in every flavour."""

import keras
import pytest
import tf_keras
from rows import V1, check, manager, row, scaled, sgd, table, tf_keras_scaled, v1_scaled, weight

import npu_keras
from npu_keras import (
    FixedLossScaleManager,
    GradientAggregation,
    GradientAggregationMixin,
    LossScaleMixin,
    NPUDistributedOptimizer,
    NPULossScaleOptimizer,
    NPUOptimizer,
)
from npu_keras import (
    tf_keras as for_tf_keras,
)
from npu_keras import (
    v1 as for_v1,
)

pytestmark = pytest.mark.tf

KO = tf_keras.optimizers


class Scaled(LossScaleMixin, keras.optimizers.SGD):
    pass


class Distributed(GradientAggregationMixin, keras.optimizers.SGD):
    pass


class TfKerasScaled(for_tf_keras.LossScaleMixin, KO.SGD):
    pass


class TfKerasDistributed(for_tf_keras.GradientAggregationMixin, KO.SGD):
    pass


HOMES = {
    "Keras 3": (npu_keras, sgd),
    "tf_keras": (for_tf_keras, lambda: KO.SGD(0.5)),
    "legacy": (for_tf_keras, lambda: KO.legacy.SGD(0.5)),
    "v1": (for_v1, lambda: V1.GradientDescentOptimizer(0.5)),
}


def optimizers(flavour, home, inner):
    """Rows that hold for every flavour of the three optimizers."""

    def add(name, call, error, *words):
        return row(f"{flavour}: {name}", call, error, *words)

    scale, both, ranks = (
        home.NPULossScaleOptimizer,
        home.NPUOptimizer,
        home.NPUDistributedOptimizer,
    )
    wrong = f"`opt` must be a {'tf_keras' if home is for_tf_keras else ''}"
    for value in (None, "adam", 3, {}, type(inner())):
        yield add(f"around {value!r:.20}", lambda v=value: scale(v, manager()), TypeError, wrong)
        yield add(f"ranks around {value!r:.20}", lambda v=value: ranks(v), TypeError, wrong)
    for other, (their_home, their_inner) in HOMES.items():
        if their_home is not home:
            hint = f"`{their_home.__name__}`"
            yield add(
                f"around {other}", lambda i=their_inner: scale(i(), manager()), TypeError, hint
            )
    for value in (None, 8, "8", FixedLossScaleManager, inner()):
        yield add(
            f"manager {value!r:.20}",
            lambda v=value: scale(inner(), v),
            TypeError,
            "`loss_scale_manager` must be",
        )
    yield add("swapped", lambda: scale(manager(), inner()), TypeError, "loss_scale_manager")
    yield add("no argument", lambda: scale(), TypeError, "NPULossScaleOptimizer", "'opt'")
    yield add("no manager", lambda: scale(inner()), TypeError, "'loss_scale_manager'")
    yield add(
        "flag without manager", lambda: both(inner(), is_loss_scale=True), ValueError, "needs"
    )
    yield add(
        "misspelt flag",
        lambda: both(inner(), is_distribued=True),
        TypeError,
        "NPUOptimizer has no argument `is_distribued`",
        "Did you mean `is_distributed`?",
    )
    yield add(
        "misspelt manager",
        lambda: scale(inner(), loss_scale_mangaer=manager()),
        TypeError,
        "Did you mean `loss_scale_manager`?",
    )
    yield add(
        "nonsense", lambda: ranks(inner(), zebra=1), TypeError, "no argument `zebra`", "['opt"
    )
    for mode in ("nan", None, ["inf_nan"], {}):
        yield add(
            f"mode {mode!r}",
            lambda m=mode: scale(inner(), manager(), overflow_mode=m),
            ValueError,
            "`overflow_mode` must be one of",
        )
    for value in ("no", None, 2, manager()):
        yield add(
            f"flag {value!r:.10}",
            lambda v=value: both(inner(), is_distributed=v),
            TypeError,
            "`is_distributed` must be True or False",
        )
    for value in ("mean", {"reduction": "mean"}, GradientAggregation, 3):
        yield add(
            f"settings {value!r:.10}",
            lambda v=value: ranks(inner(), aggregation=v),
            TypeError,
            "`aggregation` must be a `npu_keras.GradientAggregation`",
        )
    yield add("name", lambda: both(inner(), name=3), TypeError, "`name` must be a string")
    yield add(
        "settings in vain",
        lambda: both(inner(), aggregation=GradientAggregation()),
        ValueError,
        "no effect without `is_distributed=True`",
    )


OPTIMIZERS = [each for name, (h, inner) in HOMES.items() for each in optimizers(name, h, inner)]


@table(OPTIMIZERS)
def test_optimizers(bad):
    check(bad)


def two_with_one_inner():
    inner = sgd()
    first = npu_keras.NPULossScaleOptimizer(inner, manager())
    return first, npu_keras.NPULossScaleOptimizer(inner, manager())


def two_with_one_manager():
    shared = manager()
    optimizers = [NPULossScaleOptimizer(sgd(), shared) for _ in range(2)]
    for optimizer in optimizers:
        optimizer.build([weight()])


def mixin(*bases):
    return lambda: type("Mixed", bases, {})


MIXINS = [
    row("one inner in two", two_with_one_inner, TypeError, "belongs to another wrapper"),
    row("one manager in two", two_with_one_manager, ValueError, "its own loss-scale manager"),
    row("name with a slash", lambda: NPUOptimizer(sgd(), name="a/b"), ValueError, "`name`"),
    row(
        "Keras' scaler around ours",
        lambda: keras.optimizers.LossScaleOptimizer(scaled()),
        TypeError,
        "cannot be wrapped",
    ),
    row(
        "ours around Keras' scaler",
        lambda: NPULossScaleOptimizer(keras.optimizers.LossScaleOptimizer(sgd()), manager()),
        TypeError,
        "scales the loss already",
    ),
    row(
        "tf_keras' scaler around ours",
        lambda: tf_keras.mixed_precision.LossScaleOptimizer(tf_keras_scaled()),
        TypeError,
        "cannot be wrapped",
    ),
    row(
        "tf_keras' scaler around a mixin",
        lambda: tf_keras.mixed_precision.LossScaleOptimizer(
            TfKerasScaled(0.1, loss_scale_manager=manager())
        ),
        TypeError,
        "cannot be wrapped",
    ),
    row(
        "v1 around v1",
        lambda: for_v1.NPULossScaleOptimizer(v1_scaled(), manager()),
        TypeError,
        "scales the loss already",
    ),
    row(
        "twice distributed",
        lambda: NPUDistributedOptimizer(NPUDistributedOptimizer(sgd())),
        TypeError,
        "aggregates gradients already",
    ),
    row("sharded outside", lambda: NPUDistributedOptimizer(scaled(), True), TypeError, "plain one"),
    row(
        "sharded in tf_keras",
        lambda: for_tf_keras.NPUDistributedOptimizer(KO.SGD(), True),
        ValueError,
        "is_weight_update_sharding=True",
    ),
    row("mixin behind", mixin(keras.optimizers.SGD, LossScaleMixin), TypeError, "before"),
    row("tf_keras mixin behind", mixin(KO.SGD, for_tf_keras.LossScaleMixin), TypeError, "before"),
    row("mixin of another", mixin(LossScaleMixin, KO.SGD), TypeError, "npu_keras.tf_keras"),
    row(
        "mixin for v1",
        mixin(LossScaleMixin, V1.GradientDescentOptimizer),
        TypeError,
        "npu_keras.v1",
    ),
    row(
        "mixin alone",
        lambda: LossScaleMixin(loss_scale_manager=manager()),
        TypeError,
        "no optimizer class",
    ),
    row("aggregation alone", lambda: GradientAggregationMixin(), TypeError, "no optimizer class"),
    row(
        "tf_keras mixin alone",
        lambda: for_tf_keras.LossScaleMixin(loss_scale_manager=manager()),
        TypeError,
        "no optimizer class",
    ),
    row("mixin without manager", lambda: Scaled(0.1), TypeError, "'loss_scale_manager'"),
    row("mixin manager", lambda: Scaled(0.1, loss_scale_manager=3), TypeError, "must be"),
    row(
        "mixin misspelt",
        lambda: Scaled(0.1, loss_scale_manager=manager(), momentm=0.9),
        ValueError,
        "momentm",
    ),
    row("mixin settings", lambda: Distributed(0.1, aggregation="x"), TypeError, "`aggregation`"),
    row(
        "tf_keras mixin settings",
        lambda: TfKerasDistributed(0.1, aggregation="x"),
        TypeError,
        "`aggregation`",
    ),
    row(
        "mixin learning rate",
        lambda: Scaled("fast", loss_scale_manager=manager()),
        ValueError,
        "learning_rate",
    ),
    *(
        row(
            f"rate of {name}",
            lambda o=make: setattr(o(), "learning_rate", "fast"),
            TypeError,
            "`learning_rate` must be",
        )
        for name, make in (
            ("a wrapper", scaled),
            ("a mixin", lambda: Scaled(0.1, loss_scale_manager=manager())),
            ("tf_keras", tf_keras_scaled),
            ("legacy", lambda: tf_keras_scaled(KO.legacy.SGD)),
        )
    ),
    row("name of the package", lambda: npu_keras.NPUOptimzer, AttributeError, "'NPUOptimzer'"),
    row("no setting", lambda: scaled().momentm, AttributeError, "'momentm'"),
]


@table(MIXINS)
def test_nesting_and_mixins(bad):
    check(bad)
