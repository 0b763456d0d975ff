# SPDX-License-Identifier: Apache-2.0
"""Saturating arithmetic at the granularity of layers, on hardware that follows IEEE 754."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from npu_keras.callbacks.host_model import internals
from npu_keras.overflow import install_float_status
from npu_keras.sparse import map_values

MAX_FLOAT16 = 65504.0
_TRACED = ("train_function", "test_function", "predict_function")


class StatusFlag:
    """A sticky overflow flag, as the hardware's status register: kept until it is cleared."""

    def __init__(self) -> None:
        with tf.init_scope():
            self.variable = tf.Variable(False, trainable=False, name="float_status")

    def set(self, overflowed: tf.Tensor) -> None:
        """Sets the flag where a bool scalar is True, and never unsets it."""
        self.variable.assign(tf.logical_or(self.variable, overflowed))

    def get(self) -> tf.Tensor:
        """Returns a bool scalar: has anything overflowed since the last `clear`?"""
        return self.variable.read_value()

    def clear(self) -> None:
        """Resets the flag."""
        self.variable.assign(False)


@contextlib.contextmanager
def saturating(model: Any) -> Iterator[StatusFlag]:
    """Makes the float16 results of a model's layers behave as on saturating hardware.

    In the context, what a layer with the compute dtype float16 returns, the gradients that come
    into it, and those that go out of it (for its inputs and for its weights) are clamped to
    +-65504, NaN becomes 0, and a sticky flag notes that. An optimizer with
    `overflow_mode="saturation"` reads the flag once the gradients exist, and clears it; one with
    `"inf_nan"` finds only finite numbers and applies them. Ranks reduce their flags with the
    decision about the step.

    What it does not show, as the layer is the unit:

    - operations inside a layer follow IEEE 754 until the layer's result: an infinity that becomes
      finite again in the same layer (`exp(x) / (1 + exp(x))`) is not noticed, and a result that
      hardware would compute from a clamped value (65504 - 65504) is computed from the infinity;
    - an infinity that a layer is given on purpose (a mask of -inf) counts as an overflow in it;
    - casts between layers, the loss and the optimizer compute in float32, which has no part in it;
    - the gradient of a float32 weight is clamped once it has arrived, in the range of float16, even
      where the layer computed it in float32;
    - operations outside of layers, in a `train_step` or a model's own `call`, are not covered;
      layers inside a recurrent layer are covered by its result as a whole.

    Enter the context before the step is traced: functions that `fit` has traced are dropped at both
    ends, a `tf.function` of your own keeps what it was traced with. Eager and graph steps of Keras
    3 and tf_keras work, not those of `tf.compat.v1` sessions or under a `tf.distribute` strategy.

    Args:
        model: a built or unbuilt model of Keras 3 or tf_keras.

    Yields:
        The flag, for loops of your own.

    Raises:
        TypeError: for what is no model.
        ValueError: if no layer of the model computes in float16.

    Example:

    ```python
    manager = npu_keras.ExponentialUpdateLossScaleManager(2**24, incr_every_n_steps=1000)
    optimizer = npu_keras.NPULossScaleOptimizer(
        keras.optimizers.SGD(0.1), manager, overflow_mode="saturation"
    )
    model.compile(optimizer, loss="mse")
    with npu_keras.ascend.saturating(model):
        model.fit(x, y)
    ```
    """
    if isinstance(model, type) or not hasattr(model, "train_step"):
        raise TypeError(f"Expected a model of Keras 3 or tf_keras. Received: {model!r}")
    layers = [layer for layer in _units(model) if layer.compute_dtype == "float16"]
    if not layers:
        raise ValueError(
            "Expected a model with layers that compute in float16, for example under the policy "
            f"'mixed_float16': nothing else saturates. Received: {model!r}"
        )
    flag = StatusFlag()
    calls = [layer.call for layer in layers]
    own = ["call" in vars(layer) for layer in layers]
    install_float_status(flag)
    _forget_traces(model)
    for layer, call in zip(layers, calls, strict=True):
        _replace_call(layer, _saturating_call(call, flag))
    try:
        yield flag
    finally:
        for layer, call, had_one in zip(layers, calls, own, strict=True):
            _replace_call(layer, call if had_one else None)
        install_float_status(None)
        _forget_traces(model)


def _saturating_call(call: Callable[..., Any], flag: StatusFlag) -> Callable[..., Any]:
    """Returns a layer's `call` with saturated results and gradients."""

    @functools.wraps(call)
    def saturated_call(*args: Any, **kwargs: Any) -> Any:
        given = tf.nest.flatten((args, kwargs))
        places = [i for i, value in enumerate(given) if _is_floating(value)]
        outputs: list[Any] = []

        @tf.custom_gradient
        def compute(*inputs: tf.Tensor) -> Any:
            filled = dict(zip(places, inputs, strict=True))
            now = [filled.get(i, value) for i, value in enumerate(given)]
            now_args, now_kwargs = tf.nest.pack_sequence_as((args, kwargs), now)
            tape = tf.GradientTape(persistent=True)
            with tape:
                tape.watch(inputs)
                outputs[:] = [call(*now_args, **now_kwargs)]
                results = tf.nest.flatten(outputs[0])
            floating = [result for result in results if _is_floating(result)]

            def gradients(*upstream: Any, variables: Sequence[Any] | None = None) -> Any:
                sources = [*inputs, *(variables or ())]
                arriving = _saturated(upstream, flag)
                found = _saturated(tape.gradient(floating, sources, arriving), flag)
                to_inputs, to_weights = found[: len(inputs)], found[len(inputs) :]
                return to_inputs if variables is None else (to_inputs, to_weights)

            return _saturated(floating, flag), gradients

        clamped = compute(*[tf.convert_to_tensor(given[i]) for i in places])
        remaining = iter(tf.nest.flatten(clamped))
        results = [
            next(remaining) if _is_floating(result) else result
            for result in tf.nest.flatten(outputs[0])
        ]
        return tf.nest.pack_sequence_as(outputs[0], results)

    return saturated_call


def _saturated(values: Sequence[Any], flag: StatusFlag) -> list[Any]:
    """Clamps tensors to the range of float16, and notes in the flag if that changed anything."""
    return [None if value is None else map_values(_clamp(flag), value) for value in values]


def _clamp(flag: StatusFlag) -> Callable[[tf.Tensor], tf.Tensor]:
    def clamp(value: tf.Tensor) -> tf.Tensor:
        flag.set(tf.logical_not(tf.reduce_all(tf.math.is_finite(value))))
        limit = tf.constant(MAX_FLOAT16, value.dtype)
        numbers = tf.where(tf.math.is_nan(value), tf.zeros_like(value), value)
        return tf.clip_by_value(numbers, -limit, limit)

    return clamp


def _is_floating(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def _units(model: Any) -> list[Any]:
    """The layers whose results are saturated: all but models, and layers in a recurrent layer."""
    known = internals(model)
    layers = [layer for layer in known.layers_of(model) if layer is not model]
    inside = [
        {id(each) for each in known.layers_of(layer) if each is not layer}
        for layer in layers
        if hasattr(layer, "cell")
    ]
    covered = set().union(*inside)
    return [x for x in layers if id(x) not in covered and not hasattr(x, "train_step")]


def _replace_call(layer: Any, call: Callable[..., Any] | None) -> None:
    # Past `__setattr__`, which would track it.
    if call is None:
        vars(layer).pop("call", None)
    else:
        vars(layer)["call"] = call


def _forget_traces(model: Any) -> None:
    for name in _TRACED:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
