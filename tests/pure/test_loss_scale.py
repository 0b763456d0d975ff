# SPDX-License-Identifier: Apache-2.0
"""The loss-scale managers on numpy scalars."""

import copy
import gc
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from npu_keras import loss_scale
from npu_keras.loss_scale import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
    ScaleState,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "data/managers.json").read_text())["cases"]
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Optimizer:
    """What a manager expects of the optimizer that keeps its state."""

    def __init__(self, manager):
        self.manager = manager
        self.state = manager.initial_state()
        manager.bind(self)

    @property
    def loss_scale(self):
        return self.state.loss_scale

    def update_loss_scale(self, finite_grads):
        self.state = self.manager.next_state(self.state, finite_grads, np)


class HalvingManager(LossScaleManager):
    """A user's manager: its own state, only the two abstract methods."""

    def __init__(self):
        self.scale = 1024.0

    def get_loss_scale(self):
        return self.scale

    def update_loss_scale(self, finite_grads):
        self.scale = self.scale if finite_grads else self.scale / 2


def state(scale, good=0, bad=0):
    return ScaleState(np.float32(scale), np.int32(good), np.int32(bad))


def run(manager, flags, start=None):
    """The states after each step, as Python numbers."""
    current, seen = start or manager.initial_state(), []
    for finite in flags:
        current = manager.next_state(current, bool(finite), np)
        assert current.loss_scale.dtype == np.float32
        seen.append((float(current.loss_scale), int(current.good_steps), int(current.bad_steps)))
    return seen


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_trace(case):
    manager = ExponentialUpdateLossScaleManager(**case["config"])
    assert run(manager, case["finite"]) == [tuple(row) for row in case["trace"]]


def test_there_are_36_golden_traces():
    assert len(GOLDEN) == 36


def test_bad_steps_add_up_and_good_steps_are_consecutive():
    manager = ExponentialUpdateLossScaleManager(1024, 3, decr_every_n_nan_or_inf=2, decr_ratio=0.5)
    assert run(manager, [1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1]) == [
        (1024, 1, 0),
        (1024, 2, 0),
        (1024, 0, 1),
        (1024, 1, 1),
        (1024, 2, 1),
        (512, 0, 0),
        (512, 1, 0),
        (512, 0, 1),
        (512, 1, 1),
        (512, 2, 1),
        (1024, 0, 0),
    ]


def test_400_bad_steps_end_on_the_floor():
    manager = ExponentialUpdateLossScaleManager(2.0**15, 2000, 1, 2, 0.5)
    assert run(manager, [0] * 400)[-1] == (1, 0, 0)


def test_floor_below_one():
    manager = ExponentialUpdateLossScaleManager(1, 9, 1, 2, 0.5, min_loss_scale=2**-10)
    assert [row[0] for row in run(manager, [0] * 12)[8:]] == [2**-9, 2**-10, 2**-10, 2**-10]


def test_400_growths_stay_finite_and_leave_the_scale_free_to_fall():
    manager = ExponentialUpdateLossScaleManager(2.0**15, 1, 1, 2, 0.5)
    scales = [row[0] for row in run(manager, [1] * 400 + [0] * 3)]
    assert scales[111:113] == [2.0**127, 2.0**127]
    assert scales[399:] == [2.0**127, 2.0**126, 2.0**125, 2.0**124]


def test_growth_to_infinity_clears_both_counters():
    manager = ExponentialUpdateLossScaleManager(2.0**127, 2)
    assert run(manager, [0, 1, 1]) == [(2.0**127, 0, 1), (2.0**127, 1, 1), (2.0**127, 0, 0)]


@pytest.mark.parametrize("incr_ratio", [2, 1e10, 3e38])
def test_growth_beyond_the_ceiling_lands_on_it(incr_ratio):
    manager = ExponentialUpdateLossScaleManager(
        20000, 1, incr_ratio=incr_ratio, max_loss_scale=30000
    )
    assert run(manager, [1, 1]) == [(30000, 0, 0), (30000, 0, 0)]


@pytest.mark.parametrize(
    "scale, finite, expected",
    [
        (2.0**20, True, 1024),
        (2.0**20, False, 1024),
        (np.inf, True, 1024),
        (np.inf, False, 1024),
        (0.25, True, 2),
        (0.25, False, 2),
        (0, True, 2),
    ],
)
def test_scale_set_beyond_a_bound_returns_at_its_next_change(scale, finite, expected):
    manager = ExponentialUpdateLossScaleManager(
        64, 2, 2, 2, 0.5, min_loss_scale=2, max_loss_scale=1024
    )
    first, second = run(manager, [finite, finite], start=state(scale))
    assert first[0] == scale
    assert second == (expected, 0, 0)


def test_infinite_scale_without_a_ceiling_recovers():
    manager = ExponentialUpdateLossScaleManager(64, 1, 1)
    assert run(manager, [1], start=state(np.inf)) == [(FLOAT32_MAX, 0, 0)]
    assert run(manager, [0], start=state(np.inf)) == [(FLOAT32_MAX, 0, 0)]


def test_counters_beyond_their_limits_move_the_scale_at_once():
    manager = ExponentialUpdateLossScaleManager(64, 5, 2, 2, 0.5)
    assert run(manager, [1], start=state(64, good=9)) == [(128, 0, 0)]
    assert run(manager, [1], start=state(64, bad=9)) == [(64, 1, 9)]
    assert run(manager, [0], start=state(64, bad=9)) == [(32, 0, 0)]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "manager", [FixedLossScaleManager(8), ExponentialUpdateLossScaleManager(8, 2)]
)
@pytest.mark.parametrize("finite", [True, np.False_])
def test_counters_keep_their_dtype(manager, dtype, finite):
    current = ScaleState(np.float32(8), dtype(1), dtype(1))
    after = manager.next_state(current, finite, np)
    assert (after.good_steps.dtype, after.bad_steps.dtype) == (dtype, dtype)


@pytest.mark.parametrize("check", [True, False])
def test_fixed_scale_counts_and_never_moves(check):
    manager = FixedLossScaleManager(8, check)
    assert run(manager, [1, 1, 0, 0, 1]) == [(8, 1, 0), (8, 2, 0), (8, 0, 1), (8, 0, 2), (8, 1, 2)]
    assert manager.enable_overflow_check is check
    assert manager.get_enable_overflow_check() is check
    assert (manager.min_loss_scale, manager.max_loss_scale) == (None, None)


@st.composite
def managers(draw):
    positive = st.floats(2.0**-126, FLOAT32_MAX, width=32)
    low, init, high = sorted(draw(st.tuples(positive, positive, positive)))
    return ExponentialUpdateLossScaleManager(
        init,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.floats(1.0, FLOAT32_MAX, width=32, exclude_min=True)),
        draw(st.floats(2.0**-126, 1.0, width=32, exclude_max=True)),
        min_loss_scale=low,
        max_loss_scale=draw(st.sampled_from([None, high])),
    )


@given(managers(), st.lists(st.booleans(), max_size=60))
def test_any_sequence_keeps_the_bounds(manager, flags):
    ceiling = manager.max_loss_scale or FLOAT32_MAX
    before = float(manager.initial_state().loss_scale)
    for finite, (scale, good, bad) in zip(flags, run(manager, flags), strict=True):
        assert 0 < manager.min_loss_scale <= scale <= ceiling < np.inf
        assert 0 <= good < manager.incr_every_n_steps
        assert 0 <= bad < manager.decr_every_n_nan_or_inf
        assert scale >= before if finite else scale <= before
        assert finite or good == 0
        assert scale == before or good == bad == 0
        before = scale


@given(st.floats(1.0, FLOAT32_MAX, width=32, exclude_min=True), st.integers(-2, 2))
@example(ratio=1.7659316062927246, ulps=0)  # the rounded quotient is one float too high
def test_growth_is_refused_exactly_when_float32_would_overflow(ratio, ulps):
    scale = np.float32(FLOAT32_MAX / ratio)
    for _ in range(abs(ulps)):
        scale = np.nextafter(scale, np.float32(np.inf if ulps > 0 else 0))
    assume(1 <= scale < np.inf)
    with np.errstate(over="ignore"):
        product = scale * np.float32(ratio)
    manager = ExponentialUpdateLossScaleManager(1, 1, incr_ratio=ratio)
    with np.errstate(all="raise"):
        ((after, *counters),) = run(manager, [1], start=state(scale))
    assert after == (product if np.isfinite(product) else scale)
    assert counters == [0, 0]


@given(managers(), st.lists(st.booleans(), max_size=20))
def test_under_a_ceiling_the_larger_scale_stays_at_least_as_large(manager, flags):
    # Without a ceiling a refused growth can let the smaller overtake.
    assume(manager.max_loss_scale is not None)
    low = run(manager, flags, start=state(manager.min_loss_scale))
    high = run(manager, flags, start=state(manager.max_loss_scale))
    for (a, *counters_a), (b, *counters_b) in zip(low, high, strict=True):
        assert a <= b
        assert counters_a == counters_b


BAD_VALUES = [
    ("init_loss_scale", 0),
    ("init_loss_scale", -1),
    ("init_loss_scale", 0.5),
    ("init_loss_scale", 2**128),
    ("init_loss_scale", 10**400),
    ("init_loss_scale", float("inf")),
    ("init_loss_scale", float("nan")),
    ("init_loss_scale", 2**21),
    ("incr_every_n_steps", 0),
    ("incr_every_n_steps", -3),
    ("incr_every_n_steps", 2.0),
    ("incr_every_n_steps", 2**31),
    ("incr_every_n_steps", float("nan")),
    ("decr_every_n_nan_or_inf", 0),
    ("decr_every_n_nan_or_inf", 1.5),
    ("incr_ratio", 1),
    ("incr_ratio", 0.5),
    ("incr_ratio", 1 + 1e-12),
    ("incr_ratio", float("inf")),
    ("incr_ratio", 1e39),
    ("decr_ratio", 0),
    ("decr_ratio", -0.5),
    ("decr_ratio", 1),
    ("decr_ratio", 1 - 1e-12),
    ("decr_ratio", 1e-50),
    ("decr_ratio", float("nan")),
    ("min_loss_scale", 0),
    ("min_loss_scale", -1),
    ("min_loss_scale", 2.0**-127),
    ("min_loss_scale", float("-inf")),
    ("max_loss_scale", 0.5),
    ("max_loss_scale", 2**128),
    ("max_loss_scale", float("nan")),
]


@pytest.mark.parametrize("name, value", BAD_VALUES)
def test_value_error_names_argument_and_value(name, value):
    arguments = {"init_loss_scale": 64, "incr_every_n_steps": 5, "max_loss_scale": 2**20}
    message = f"^`{name}` must be .*Received: {re.escape(f'{name}={value!r}')}$"
    with pytest.raises(ValueError, match=message):
        ExponentialUpdateLossScaleManager(**arguments | {name: value})


@pytest.mark.parametrize("value", [True, np.True_, "2", [2], 2j, np.array(2.0), None])
@pytest.mark.parametrize("name", ExponentialUpdateLossScaleManager._fields[:-1])
def test_type_error_names_argument_and_value(name, value):
    arguments = {"init_loss_scale": 64, "incr_every_n_steps": 5}
    message = f"^`{name}` must be .*Received: {re.escape(f'{name}={value!r}')}$"
    with pytest.raises(TypeError, match=message):
        ExponentialUpdateLossScaleManager(**arguments | {name: value})


@pytest.mark.parametrize("value", [True, "2", [2]])
def test_ceiling_of_wrong_type(value):
    with pytest.raises(TypeError, match="`max_loss_scale` must be a number. Received: max_loss"):
        ExponentialUpdateLossScaleManager(64, 5, max_loss_scale=value)


@pytest.mark.parametrize("value", [0.999, 0, -8, 2**128, float("inf"), float("nan")])
def test_fixed_scale_out_of_range(value):
    with pytest.raises(ValueError, match="`loss_scale` must be .* Received: loss_scale="):
        FixedLossScaleManager(value)


@pytest.mark.parametrize("value", [True, "8", None])
def test_fixed_scale_of_wrong_type(value):
    with pytest.raises(TypeError, match="`loss_scale` must be a number"):
        FixedLossScaleManager(value)
    with pytest.raises(TypeError, match="`enable_overflow_check` must be a bool"):
        FixedLossScaleManager(8, enable_overflow_check=1)


def test_extreme_but_valid_arguments():
    manager = ExponentialUpdateLossScaleManager(
        2**127, np.int64(5), np.uint8(1), np.float16(2), np.float32(0.5), min_loss_scale=2.0**-126
    )
    assert float(manager.get_loss_scale()) == 2.0**127
    assert run(manager, [0] * 300)[-1][0] == 2.0**-126
    assert ExponentialUpdateLossScaleManager(0.5, 1, min_loss_scale=0.5).min_loss_scale == 0.5


@pytest.mark.parametrize(
    "manager",
    [
        FixedLossScaleManager(1024, enable_overflow_check=np.False_),
        ExponentialUpdateLossScaleManager(np.float32(64), np.int32(7)),
        ExponentialUpdateLossScaleManager(
            2**32, 20, 1, 4, 0.5, min_loss_scale=0.5, max_loss_scale=2**40
        ),
    ],
)
def test_config_is_json_and_builds_an_equal_manager(manager):
    config = json.loads(json.dumps(manager.get_config()))
    again = type(manager).from_config(config)
    assert again == manager
    assert hash(again) == hash(manager)
    assert again.get_config() == config == manager.get_config()
    assert eval(repr(manager)) == manager
    assert manager != HalvingManager()


def test_managers_with_other_arguments_or_types_differ():
    class Mine(FixedLossScaleManager):
        pass

    distinct = {FixedLossScaleManager(8), FixedLossScaleManager(8, False), Mine(8)}
    assert len(distinct | {FixedLossScaleManager(8.0)}) == 3
    assert FixedLossScaleManager(8) != FixedLossScaleManager(1)


def test_repr_shows_the_arguments():
    assert repr(FixedLossScaleManager(8)) == (
        "FixedLossScaleManager(loss_scale=8.0, enable_overflow_check=True)"
    )
    assert "incr_every_n_steps=5, decr_every_n_nan_or_inf=2, incr_ratio=2.0" in repr(
        ExponentialUpdateLossScaleManager(64, 5)
    )


@pytest.mark.parametrize(
    "manager", [FixedLossScaleManager(8), ExponentialUpdateLossScaleManager(8, 5)]
)
def test_configuration_is_immutable(manager):
    before = manager.get_config()
    for name in manager._fields:
        with pytest.raises(AttributeError, match=f"`{name}` cannot change.*construct a new"):
            setattr(manager, name, 3)
    assert manager.get_config() == before


def test_subclass_of_a_builtin_may_have_attributes_of_its_own():
    class Named(ExponentialUpdateLossScaleManager):
        def __init__(self, label, **arguments):
            super().__init__(**arguments)
            self.label = label

    manager = Named("generator", init_loss_scale=8, incr_every_n_steps=5)
    manager.label = "discriminator"
    assert manager.label == "discriminator"
    assert run(manager, [1]) == [(8, 1, 0)]


class Capped(ExponentialUpdateLossScaleManager):
    """Only what the step says is overridden; the scale stays the optimizer's."""

    def update_loss_scale(self, finite_grads):
        self.seen = [*getattr(self, "seen", []), bool(finite_grads)]
        return super().update_loss_scale(finite_grads)


class Halved(ExponentialUpdateLossScaleManager):
    """The scale in use is half of the one that the rule moves."""

    def get_loss_scale(self):
        return super().get_loss_scale() / 2


class Shrinking(FixedLossScaleManager):
    """Both are overridden, by a rule of its own."""

    def __init__(self):
        self.scale = 8.0

    def get_loss_scale(self):
        return self.scale

    def update_loss_scale(self, finite_grads):
        self.scale -= 1


class Counting(ExponentialUpdateLossScaleManager):
    """Reads and clears the counters by the names that TensorFlow 1's class gives them."""

    def update_loss_scale(self, finite_grads):
        assert self._incr_every_n_steps == 2
        if self._num_good_steps == 1:
            return self._reset_stats()
        return super().update_loss_scale(finite_grads)


@pytest.mark.parametrize(
    "make, first, want",
    [
        (Capped, 8, [(8, 1, 0), (4, 0, 0), (4, 1, 0), (8, 0, 0)]),
        (Halved, 4, [(4, 1, 0), (2, 0, 0), (2, 1, 0), (4, 0, 0)]),
        (Counting, 8, [(8, 1, 0), (8, 0, 0), (8, 1, 0), (8, 0, 0)]),
        (lambda *_: Shrinking(), 8, [(7, 1, 0), (6, 0, 1), (5, 1, 1), (4, 2, 1)]),
    ],
)
def test_subclass_of_a_builtin_that_overrides_the_two_methods(make, first, want):
    manager = make(8, 2, 1, 2, 0.5)
    assert manager.initial_state() == (first, 0, 0)
    assert manager.get_loss_scale() == first
    assert run(manager, [1, 0, 1, 1]) == want


def test_what_such_a_subclass_keeps_is_its_own():
    manager = Capped(8, 2, 1, 2, 0.5)
    run(manager, [1, 0])
    assert manager.seen == [True, False]
    other = copy.deepcopy(manager)
    assert other == manager
    with pytest.raises(NotImplementedError, match="Shrinking cannot be saved"):
        Shrinking().get_config()
    assert repr(Shrinking()) == "Shrinking()"


def test_an_own_rule_comes_before_the_two_methods():
    class Own(Capped):
        def next_state(self, state, finite, xp):
            return state._replace(loss_scale=state.loss_scale + 1)

    assert run(Own(8, 2), [1, 0]) == [(9, 0, 0), (10, 0, 0)]


def test_users_manager_needs_two_methods_only():
    manager = HalvingManager()
    assert manager.initial_state() == ScaleState(1024, 0, 0)
    assert [x.dtype for x in manager.initial_state()] == [np.float32, np.int32, np.int32]
    assert run(manager, [1, 0, 0, 1]) == [(1024, 1, 0), (512, 0, 1), (256, 0, 2), (256, 1, 2)]
    assert manager.enable_overflow_check is True
    assert manager.get_enable_overflow_check() is True
    assert (manager.min_loss_scale, manager.max_loss_scale) == (None, None)


def test_users_manager_without_config_says_what_to_override():
    with pytest.raises(NotImplementedError, match=r"HalvingManager.*Override `get_config\(\)`"):
        HalvingManager().get_config()
    with pytest.raises(NotImplementedError, match=r"HalvingManager.*Override `from_config\(\)`"):
        HalvingManager.from_config({})


def test_abstract_manager_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        LossScaleManager()
    for kept in ("get_loss_scale", "update_loss_scale"):  # half a manager
        half = type("Half", (LossScaleManager,), {kept: getattr(HalvingManager, kept)})
        with pytest.raises(TypeError, match="abstract"):
            half()


@pytest.mark.parametrize("make", [HalvingManager, lambda: FixedLossScaleManager(8)])
def test_one_manager_serves_one_optimizer(make):
    manager = make()
    first = Optimizer(manager)
    manager.bind(first)
    with pytest.raises(ValueError, match="own loss-scale manager.*another Optimizer.*second"):
        Optimizer(manager)
    first.itself = first  # a cycle, which only the garbage collector breaks
    gc.disable()
    try:
        del first
        second = Optimizer(manager)
    finally:
        gc.enable()
    manager.bind(second)


def test_bound_manager_works_on_the_state_of_its_optimizer():
    manager = ExponentialUpdateLossScaleManager(64, 2, 1, 2, 0.5)
    optimizer = Optimizer(manager)
    manager.update_loss_scale(False)
    assert optimizer.state == ScaleState(32, 0, 0)
    assert manager.get_loss_scale() == 32
    assert manager.initial_state().loss_scale == 64
    del optimizer
    gc.collect()
    assert manager.get_loss_scale() == np.float32(64)


def test_unbound_manager_cannot_update():
    manager = FixedLossScaleManager(8)
    assert not manager.read_unbound
    assert manager.get_loss_scale() == 8
    assert manager.read_unbound
    assert manager.get_loss_scale().dtype == np.float32
    with pytest.raises(RuntimeError, match="Attach it to an optimizer first"):
        manager.update_loss_scale(True)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_are_free_for_another_optimizer(duplicate):
    manager = ExponentialUpdateLossScaleManager(64, 2)
    optimizer = Optimizer(manager)
    optimizer.update_loss_scale(True)
    other = Optimizer(duplicate(manager))
    assert other.manager == manager
    assert other.manager is not manager
    assert other.state == ScaleState(64, 0, 0)
    other.update_loss_scale(True)
    other.update_loss_scale(True)
    assert other.state == ScaleState(128, 0, 0)


def test_needs_no_framework():
    # The package stands in empty: its public names may well need Keras.
    script = (
        "import sys, types\n"
        "package = sys.modules['npu_keras'] = types.ModuleType('npu_keras')\n"
        f"package.__path__ = [{str(Path(loss_scale.__file__).parent)!r}]\n"
        "import npu_keras.loss_scale\n"
        "print(sorted({'tensorflow', 'keras', 'tf_keras'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"
