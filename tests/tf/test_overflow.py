# SPDX-License-Identifier: Apache-2.0
"""What counts as an overflow, in tensors and IndexedSlices of every dtype."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scaled import INF, KINDS, NAN, apply, assert_bit_equal, make, manager, sgd, values, weight

from npu_keras import NPULossScaleOptimizer
from npu_keras.overflow import OverflowCheck, install_float_status, validate_mode

EXACT = OverflowCheck("inf_nan", "float32")
SATURATING = OverflowCheck("saturation", "float16")
FLOAT32_MAX = float(np.finfo(np.float32).max)


def found(check, *gradients):
    finding = check.inspect(gradients)
    return bool(finding.overflowed), finding.infs.numpy().tolist(), finding.nans.numpy().tolist()


def slices(values, indices, rows=10, dtype="float32"):
    values = tf.constant(values, dtype)
    return tf.IndexedSlices(values, tf.constant(indices), tf.constant([rows, values.shape[1]]))


class TestInfNanMode:
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
    def test_counts_by_gradient(self, dtype):
        gradients = [
            tf.constant([1.0, -2.0], dtype),
            tf.constant([[INF, NAN], [-INF, 1.0]], dtype),
            tf.constant(NAN, dtype),
        ]
        assert found(EXACT, *gradients) == (True, [0, 2, 0], [0, 1, 1])
        assert found(EXACT, gradients[0]) == (False, [0], [0])

    @pytest.mark.parametrize(
        "gradient",
        [
            tf.constant([FLOAT32_MAX, FLOAT32_MAX, -1.0]),  # the sum overflows, no element does
            tf.constant([65504.0] * 9, tf.float16),
            tf.constant([1e300, -1e300], tf.float64),  # beyond float32
            tf.constant([INF, 1.0])[1:],
            tf.zeros((0, 3)),
            tf.constant([2**31 - 1, -5]),
        ],
    )
    def test_large_but_finite(self, gradient):
        assert found(EXACT, gradient)[0] is False

    def test_infinities_that_cancel_are_seen(self):
        assert found(EXACT, tf.constant([INF, -INF])) == (True, [2], [0])

    def test_complex_parts(self):
        assert found(EXACT, tf.constant([1 + 2j, complex(INF, NAN)])) == (True, [1], [1])

    def test_only_the_suspicious_are_counted(self):
        """The exact pass lies in a branch that a finite sum does not take."""
        check = tf.function(lambda g: EXACT.inspect([g]).infs).get_concrete_function(tf.zeros((4,)))
        outside = {operation.type for operation in check.graph.get_operations()}
        assert "IsNan" not in outside
        assert {"Sum", "IsFinite"} <= outside
        assert outside & {"If", "StatelessIf"}


class TestIndexedSlices:
    def test_values_are_looked_at(self):
        assert found(EXACT, slices([[1.0, NAN], [INF, 2.0]], [3, 5])) == (True, [1], [1])
        assert found(EXACT, slices([[1.0, 2.0]], [3])) == (False, [0], [0])

    @pytest.mark.parametrize("compiled", [False, True])
    def test_duplicates_whose_sum_overflows(self, compiled):
        check = tf.function(lambda g: EXACT.inspect([g]), jit_compile=compiled)
        finding = check(slices([[3e38, 1.0], [1.0, 1.0], [3e38, 1.0]], [7, 2, 7]))
        assert (bool(finding.overflowed), finding.infs.numpy().tolist()) == (True, [1])

    def test_large_rows_of_different_indices_do_not(self):
        assert found(EXACT, slices([[3e38], [3e38], [-3e38]], [7, 2, 3])) == (False, [0], [0])

    def test_large_rows_that_cancel_do_not(self):
        assert found(EXACT, slices([[3e38], [-3e38]], [7, 7])) == (False, [0], [0])

    def test_float16_rows_are_added_in_float32(self):
        assert found(EXACT, slices([[6e4], [6e4]], [7, 7], dtype="float16"))[0] is False

    def test_float16_rows_beside_an_overflow_are_none(self):
        rows = slices([[40000.0], [40000.0]], [3, 3], dtype="float16")
        assert found(EXACT, rows, tf.constant(INF)) == (True, [0, 1], [0, 0])

    def test_rows_of_complex_numbers(self):
        """Real and imaginary parts are added up by themselves, over rows of one index."""
        half = FLOAT32_MAX / 2
        rows = slices([[complex(half, 1)], [complex(half, 1)]], [3, 3], dtype="complex64")
        apart = slices([[complex(half, half)], [complex(half, half)]], [3, 4], dtype="complex64")
        check = OverflowCheck("saturation", "float32")
        assert found(check, rows) == (True, [1], [0])
        assert found(check, apart) == (False, [0], [0])
        assert found(EXACT, slices([[1 + 0j], [complex(1, NAN)]], [3, 3], dtype="complex64"))[0]

    def test_no_rows(self):
        empty = tf.IndexedSlices(tf.zeros((0, 2)), tf.zeros((0,), tf.int64), tf.constant([9, 2]))
        assert found(EXACT, empty) == (False, [0], [0])

    @pytest.mark.parametrize("compiled", [False, True])
    def test_a_large_embedding_is_never_densified(self, compiled):
        table = weight(np.zeros((100_000, 8)), name="table")
        optimizer = sgd(scale_manager=manager(4.0), rate=1.0)
        optimizer.build([table])

        @tf.function(jit_compile=compiled)
        def step(rows):
            gradient = tf.IndexedSlices(
                rows, tf.constant([5, 99_999, 5]), tf.constant([100_000, 8])
            )
            optimizer.apply([gradient], [table])

        step(tf.fill((3, 8), 4.0))
        assert table.numpy().sum() == -3 * 8.0
        np.testing.assert_array_equal(table.numpy()[[5, 99_999]], [[-2.0] * 8, [-1.0] * 8])
        before = table.numpy()
        step(tf.fill((3, 8), FLOAT32_MAX))
        assert_bit_equal([table.numpy()], [before])
        event = optimizer.journal.drain()[-1]
        assert (event.variable, event.infs) == ("table", 8)

        graphs = all_graphs(step.get_concrete_function(tf.zeros((3, 8))).graph)
        operations = [operation for graph in graphs for operation in graph.get_operations()]
        assert "ResourceScatterSub" in {operation.type for operation in operations}
        outputs = [output for operation in operations for output in operation.outputs]
        sizes = [output.shape.num_elements() or 0 for output in outputs]
        assert max(sizes) < 10_000


def all_graphs(graph):
    """A graph and those of the branches in it."""
    inner = [getattr(function, "graph", None) for function in graph._functions.values()]
    return [graph] + [g for found in inner if found is not None for g in all_graphs(found)]


class Register:
    """An emulated status register: sticky until it is cleared."""

    def __init__(self):
        self.flag = tf.Variable(False)
        self.clears = tf.Variable(0)

    def get(self):
        return tf.identity(self.flag)

    def clear(self):
        self.flag.assign(False)
        self.clears.assign_add(1)


class TestSaturationMode:
    def test_values_at_the_limit_of_the_compute_dtype(self):
        assert found(SATURATING, tf.constant([65504.0, -65504.0, 1.0])) == (True, [2], [0])
        assert found(SATURATING, tf.constant([65504.0], tf.float16)) == (True, [1], [0])
        assert found(SATURATING, tf.constant([65503.0])) == (False, [0], [0])

    def test_values_at_the_limit_of_float32(self):
        check = OverflowCheck("saturation", "float32")
        assert found(check, tf.constant([FLOAT32_MAX, 70000.0])) == (True, [1], [0])
        assert found(check, tf.constant([-FLOAT32_MAX]))[0] is True

    def test_infinities_and_nans_count_as_well(self):
        assert found(SATURATING, tf.constant([INF, NAN])) == (True, [1], [1])

    def test_sparse_rows(self):
        assert found(SATURATING, slices([[65504.0]], [1]))[0] is True
        assert found(SATURATING, slices([[4e4], [4e4]], [1, 1]))[0] is True

    @pytest.mark.parametrize("compiled", [False, True])
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
    def test_the_limit_is_exact_after_a_division(self, dtype, compiled):
        """Among other numbers, in dtypes that round the limit up or down."""
        numpy = tf.as_dtype(dtype).as_numpy_dtype
        others = np.linspace(-3, 3, 1000)
        for divided_by in (1, 2, 3, 5, 7, 11):
            look = tf.function(
                lambda value, n=divided_by: SATURATING.inspect([value], n), jit_compile=compiled
            )
            limit = np.asarray(65504 / divided_by).astype(numpy)
            below = limit - np.asarray(2.0**-7 * float(limit)).astype(numpy)
            for sign in (1, -1):
                for value, count in ((limit, 1), (below, 0), (np.nan, 0)):
                    array = np.append(others, sign * float(value)).astype(numpy)
                    overflowed, infs, nans = look(tf.constant(array))
                    assert infs.numpy().tolist() == [count], (divided_by, value)
                    assert nans.numpy().tolist() == [int(np.isnan(float(value)))]
                    assert bool(overflowed) == (count > 0 or np.isnan(float(value)))

    def test_no_exact_pass_without_suspicion(self, monkeypatch):
        """The exact count is behind a condition: nothing of it runs on ordinary gradients."""
        ran = []

        def counted(*arguments):
            ran.append(arguments)
            return tf.zeros((2, 1), tf.int64)

        monkeypatch.setattr(OverflowCheck, "_count", counted)
        assert found(SATURATING, tf.constant([64000.0, -64000.0, 1e-9])) == (False, [0], [0])
        assert ran == []
        found(SATURATING, tf.constant([-65000.0]))
        assert len(ran) == 1

    @pytest.mark.parametrize("kind", KINDS)
    def test_both_modes_under_mixed_precision(self, kind):
        keras.config.set_dtype_policy("mixed_float16")
        for mode, applied in (("inf_nan", True), ("saturation", False)):
            variable, optimizer = weight(1.0), sgd(kind, manager(2.0), mode, rate=2.0**-15)
            optimizer.apply([tf.constant(65504.0)], [variable])
            assert float(variable) == (1 - 32752 / 2**15 if applied else 1.0)
            assert float(optimizer.loss_scale) == (2.0 if applied else 1.0)
            assert bool(optimizer.last_step_finite) is applied

    @pytest.mark.parametrize("compiled", [False, True])
    def test_status_register(self, compiled):
        register = Register()
        install_float_status(register)
        variable, optimizer = weight(1.0), sgd(scale_manager=manager(4.0), mode="saturation")
        optimizer.build([variable])

        @tf.function(jit_compile=compiled)
        def step(gradient):
            optimizer.apply([gradient], [variable])

        register.flag.assign(True)
        step(tf.constant(4.0))
        assert float(variable) == 1.0
        assert float(optimizer.loss_scale) == 2.0
        event = optimizer.journal.drain()[-1]
        assert (event.kind, event.bad_variables, event.variable) == ("back off", 0, None)
        assert not bool(register.flag)
        assert int(register.clears) == 1

        step(tf.constant(2.0))
        assert float(variable) == np.float32(1.0) - np.float32(0.1)

    def test_with_a_register_values_at_the_limit_are_taken_for_results(self):
        install_float_status(Register())
        keras.config.set_dtype_policy("mixed_float16")
        variable = weight(0.0)
        optimizer = sgd(scale_manager=manager(1.0), mode="saturation", rate=1.0)
        apply(optimizer, variable, 65504.0)
        assert float(variable) == -65504.0

    def test_a_register_is_not_read_in_inf_nan_mode(self):
        register = Register()
        register.flag.assign(True)
        install_float_status(register)
        variable, optimizer = weight(1.0), sgd(rate=0.5)
        apply(optimizer, variable, 1.0)
        assert float(variable) == 0.5
        assert bool(register.flag)

    def test_an_aggregate_is_judged_by_its_values_alone(self):
        """A register knows of operations that the other ranks did not do."""
        register = Register()
        register.flag.assign(True)
        install_float_status(register)
        saturated, large = tf.constant([65504.0, 1.0]), tf.constant([60000.0])
        look = SATURATING.inspect_aggregate
        assert [bool(look([value]).overflowed) for value in (saturated, large)] == [True, False]
        assert not bool(
            OverflowCheck("inf_nan", "float16").inspect_aggregate([saturated]).overflowed
        )
        assert bool(register.flag)

    def test_the_mode_is_kept(self):
        optimizer = sgd(mode="saturation")
        again = type(optimizer).from_config(optimizer.get_config())
        assert again.overflow_mode == "saturation"

    def test_unknown_mode(self):
        with pytest.raises(ValueError, match=r"inf_nan.*saturation.*overflow_mode='clip'"):
            NPULossScaleOptimizer(keras.optimizers.SGD(), manager(), overflow_mode="clip")
        assert validate_mode("saturation") == "saturation"


class TestUnscaling:
    @pytest.mark.parametrize("kind", KINDS)
    def test_small_gradient_of_a_float16_weight(self, kind):
        seen = []

        class Spy(keras.optimizers.SGD):
            def update_step(self, gradient, variable, learning_rate):
                seen.append((gradient.dtype, float(gradient)))
                super().update_step(gradient, variable, learning_rate)

        variable = weight(0.0, "float16")
        optimizer = make(kind, Spy, manager(2.0**15), learning_rate=1.0)
        optimizer.scale_loss(0.0)
        optimizer.apply([tf.constant(2.0**-20 * 2.0**15, tf.float16)], [variable])
        assert seen == [(tf.float32, 2.0**-20)]
        assert float(variable) == -(2.0**-20)
        # In float16, 2**-11 / 2**15 is 2**-26, less than the smallest number.
        optimizer.apply([tf.constant(2.0**-11, tf.float16)], [variable])
        assert seen[1] == (tf.float32, 2.0**-26)

    def test_scale_beyond_float16_on_a_float16_loss(self):
        optimizer = sgd(scale_manager=manager(2.0**32))
        scaled = optimizer.scale_loss(tf.constant(0.5, tf.float16))
        assert (scaled.dtype, float(scaled)) == (tf.float32, 2.0**31)
        assert optimizer.scale_loss(tf.constant(0.5, tf.bfloat16)).dtype == tf.float32
        double = optimizer.scale_loss(tf.constant(1e300, tf.float64))
        assert (double.dtype, float(double)) == (tf.float64, 1e300 * 2.0**32)
        assert float(optimizer.scale_loss(2)) == 2.0**33

    @pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
    def test_weights_of_other_dtypes(self, dtype):
        variable, optimizer = weight([1.0, 2.0], dtype), sgd(rate=0.5)
        for gradient in ([8.0, 16.0], [INF, 0.0]):
            optimizer.apply([tf.constant(gradient, dtype)], [variable])
        assert variable.dtype == dtype
        np.testing.assert_array_equal(np.asarray(variable, "float64"), [0.5, 1.0])

    def test_largest_scale(self):
        variable = weight(1.0)
        optimizer = sgd(scale_manager=manager(2.0**127), rate=1.0)
        optimizer.apply([tf.constant(2.0**126)], [variable])
        assert float(variable) == 0.5

    def test_accumulation_of_float16_weights(self):
        variable = weight(1.0, "float16")
        optimizer = sgd(rate=1.0, gradient_accumulation_steps=2)
        apply_twice = [tf.constant(2.0, tf.float16), tf.constant(4.0, tf.float16)]
        for gradient in apply_twice:
            optimizer.apply([gradient], [variable])
        assert float(variable) == 1.0 - (0.25 + 0.5) / 2
        assert int(optimizer.iterations) == 1

    def test_variables_that_take_their_gradient_as_it_is(self):
        amax, kernel = weight([1.0, 1.0], name="amax"), weight(1.0, name="kernel")
        amax.overwrite_with_gradient = True
        optimizer = sgd(scale_manager=manager(16.0), rate=0.5)
        optimizer.apply([tf.constant([3.0, 4.0]), tf.constant(16.0)], [amax, kernel])
        assert (amax.numpy().tolist(), float(kernel)) == ([3.0, 4.0], 0.5)
        optimizer.apply([tf.constant([5.0, 6.0]), tf.constant(INF)], [amax, kernel])
        assert (amax.numpy().tolist(), float(kernel)) == ([3.0, 4.0], 0.5)


class TestMissingGradients:
    @pytest.mark.parametrize("kind", KINDS)
    def test_none_beside_others(self, kind):
        v, w = weight(1.0, name="v"), weight(1.0, name="w")
        optimizer = sgd(kind, rate=0.5)
        optimizer.apply([tf.constant(8.0), None], [v, w])
        assert (float(v), float(w), int(optimizer.good_steps)) == (0.5, 1.0, 1)
        optimizer.apply([None, tf.constant(NAN)], [v, w])
        assert (float(v), float(w)) == (0.5, 1.0)
        assert optimizer.journal.overflows_by_variable() == {"v": 0, "w": 1}

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("gradients", [[None, None], []])
    def test_none_at_all(self, kind, gradients):
        variables = [weight(1.0), weight(1.0)]
        optimizer = sgd(kind)
        optimizer.build(variables)
        before = values(optimizer.variables)
        with pytest.raises(ValueError, match="at least one variable"):
            optimizer.apply(gradients, variables[: len(gradients)])
        assert_bit_equal(values(optimizer.variables), before)

    def test_as_many_gradients_as_variables(self):
        with pytest.raises(ValueError, match="1 gradients for 2 variables"):
            sgd().apply([tf.constant(1.0)], [weight(), weight()])

    def test_variables_must_be_known(self):
        with pytest.raises(ValueError, match="does not know its variables"):
            sgd().apply([tf.constant(1.0)])

    def test_a_variable_given_twice_gets_both_gradients(self):
        variable, optimizer = weight(1.0), sgd(rate=0.5)
        optimizer.apply_gradients([(tf.constant(4.0), variable), (tf.constant(8.0), variable)])
        assert float(variable) == 1.0 - 0.25 - 0.5
