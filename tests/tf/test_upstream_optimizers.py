# SPDX-License-Identifier: Apache-2.0
"""The private names of Keras and TensorFlow behind a step still mean what they did."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from npu_keras import _upstream
from npu_keras._upstream_compilation import unknown_to_xla


def variables(count=2):
    return [keras.Variable(np.ones(2, "float32"), name=f"w{i}") for i in range(count)]


@pytest.mark.parametrize("name", _upstream.INHERITED)
def test_keras_optimizers_still_have(name):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    optimizer.build(variables())
    assert hasattr(optimizer, name)


def test_in_xla_is_true_only_where_xla_compiles():
    seen = []

    def record(x):
        seen.append(_upstream.in_xla())
        return x

    record(1.0)
    tf.function(record)(tf.constant(1.0))
    tf.function(record, jit_compile=True)(tf.constant(1.0))
    assert seen == [False, False, True]


def test_replicas_of_the_default_strategy_need_no_merge_call():
    assert _upstream.supports_no_merge_call() is True


def test_an_optimizer_left_to_us_does_not_sum():
    optimizer = keras.optimizers.SGD(0.1)
    assert "_all_reduce_sum_gradients" in dir(keras.optimizers.Optimizer)
    _upstream.leave_aggregation_to_us(optimizer)
    assert optimizer._all_reduce_sum_gradients([("g", "v")]) == [("g", "v")]


def test_nadam_updates_all_at_once_and_adam_does_not():
    assert _upstream.updates_all_at_once(keras.optimizers.Nadam())
    assert not _upstream.updates_all_at_once(keras.optimizers.Adam())


def test_clip_gradients_clips_by_the_norm_of_all():
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=7.0)
    clipped = _upstream.clip_gradients(optimizer, [tf.constant([3.0]), tf.constant([4.0])], 1.0)
    np.testing.assert_allclose([c.numpy()[0] for c in clipped], [0.6, 0.8], rtol=1e-6)
    assert optimizer.global_clipnorm == 7.0


def test_slots_by_reference_tells_the_variable_of_each_slot():
    made = _upstream.slots_by_reference(keras.optimizers.Adam(), variables())
    assert [(position, name) for position, name, _ in made] == [
        (0, "momentum"),
        (0, "velocity"),
        (1, "momentum"),
        (1, "velocity"),
    ]


def test_a_single_step_sees_updates_and_the_schedule_micro_batches():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.5])
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=2)
    (weight,) = trained = variables(1)
    optimizer.build(trained)
    optimizer._iterations.assign(4)  # the second window of two micro-batches is full
    with _upstream.as_single_step(optimizer):
        assert int(optimizer.iterations) == 1
        optimizer.apply([tf.constant([1.0, 2.0])], trained)
    np.testing.assert_allclose(weight.numpy(), [0.5, 0.0])  # 1 - 0.5 g: the schedule is at step 3
    assert int(optimizer._iterations) == 4
    assert int(optimizer.iterations) == 2


def test_add_to_accumulators_adds():
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    trained = variables(1)
    optimizer.build(trained)
    sums = optimizer._accumulated_gradients
    _upstream.add_to_accumulators(optimizer, [tf.constant([1.0, 2.0])], sums)
    _upstream.add_to_accumulators(optimizer, [tf.constant([1.0, 2.0])], sums)
    np.testing.assert_array_equal(sums[0].numpy(), [2.0, 4.0])


def test_rules_of_keras_are_told_from_others():
    class Own(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise NotImplementedError

    class OwnApply(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            raise NotImplementedError

    assert _upstream.updates_by_rule(keras.optimizers.AdamW())
    assert not _upstream.updates_by_rule(Own())
    assert not _upstream.updates_by_rule(OwnApply())
    replaced = keras.optimizers.SGD()
    vars(replaced)["apply"] = lambda gradients, trainable_variables: None
    assert not _upstream.updates_by_rule(replaced)


def test_what_xla_cannot_compile_is_known():
    def call(x):
        tf.print(x)
        return tf.sort(x) + tf.numpy_function(np.abs, [x], tf.float32)

    graph = tf.function(call).get_concrete_function(tf.TensorSpec([2])).graph
    assert unknown_to_xla(graph, "CPU") == ["PrintV2", "PyFunc", "StringFormat"]
