# SPDX-License-Identifier: Apache-2.0
"""What a caller hands over, looked at before TensorFlow fails on it deep inside."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from npu_keras.sparse import Gradient


def as_tensor(name: str, value: Any, expected: str) -> tf.Tensor:
    """Returns a value as a tensor.

    Args:
        name: what it is called, for the error.
        value: anything that TensorFlow converts.
        expected: what it should have been, for the error.

    Raises:
        TypeError: if it cannot be converted.
    """
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be {expected}. Received: {value!r}") from error


def loss_tensor(loss: Any) -> tf.Tensor:
    """Returns a loss as a tensor.

    Args:
        loss: tensor of any real dtype, or a number.

    Raises:
        TypeError: if it is none.
    """
    expected = "a tensor of real numbers, or a number"
    tensor = as_tensor("The loss", loss, expected)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError(f"The loss must be {expected}. Received: dtype {tensor.dtype.name}")
    return tensor


def flag_tensor(name: str, value: Any) -> tf.Tensor:
    """Returns a bool scalar.

    Args:
        name: what it is called, for the error.
        value: a bool, or a scalar tensor of bools or numbers.

    Raises:
        TypeError: if it is none.
    """
    tensor = as_tensor(name, value, "a bool scalar")
    if tensor.dtype == tf.string or tensor.shape.rank not in (0, None):
        raise TypeError(f"{name} must be a bool scalar. Received: {value!r}")
    return tf.cast(tensor, tf.bool)


def variable_list(
    name: str, variables: Any, example: str = "model.trainable_variables"
) -> list[Any]:
    """Returns variables as a list.

    Args:
        name: what they are called, for the error.
        variables: iterable of Keras or TensorFlow variables.
        example: what they are as a rule, for the error.

    Raises:
        TypeError: if it is none, or holds something else.
    """
    if _is_variable(variables) or tf.is_tensor(variables) or not isinstance(variables, Iterable):
        raise TypeError(f"{name} must be a list of variables. Received: {variables!r}")
    found = list(variables)
    for variable in found:
        if not _is_variable(variable):
            raise TypeError(
                f"{name} must be Keras or TensorFlow variables, such as `{example}`. "
                f"Received one of {type(variable).__name__}: {variable!r}"
            )
    return found


def tf_variable_list(name: str, variables: Any, optimizers: str) -> list[Any]:
    """Returns variables as a list, for optimizers that cannot update those of Keras 3.

    Args:
        name: what they are called, for the error.
        variables: iterable of TensorFlow variables.
        optimizers: what kind of optimizers, for the error.

    Raises:
        TypeError: if it is none, or holds something else.
    """
    found = variable_list(name, variables)
    for variable in found:
        if not isinstance(variable, tf.Variable):
            raise TypeError(
                f"{name} must be TensorFlow variables, which {optimizers} optimizers update; for "
                f"those of Keras 3 use the class of the same name in `npu_keras`. "
                f"Received: {variable!r}"
            )
    return found


def learning_rate(rate: Any) -> Any:
    """Returns a learning rate as it is, if it can be one.

    Args:
        rate: a number, a schedule or another callable.

    Raises:
        TypeError: for anything else.
    """
    if not callable(rate):
        tensor = as_tensor("`learning_rate`", rate, "a number or a schedule")
        if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
            raise TypeError(f"`learning_rate` must be a number. Received: {rate!r}")
    return rate


def pair_list(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """Returns pairs of gradient and variable as a list.

    Args:
        grads_and_vars: iterable of pairs.

    Raises:
        TypeError: if it is none.
    """
    found = None if tf.is_tensor(grads_and_vars) else grads_and_vars
    found = list(found) if isinstance(found, Iterable) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in found):
        raise TypeError(
            "`grads_and_vars` must be pairs of gradient and variable, such as "
            f"`zip(gradients, model.trainable_variables)`. Received: {grads_and_vars!r}"
        )
    return [(gradient, variable) for gradient, variable in found]


def gradient_list(name: str, gradients: Any) -> list[Any]:
    """Returns gradients as a list, not looked at yet.

    Args:
        name: what they are called, for the error.
        gradients: iterable.

    Raises:
        TypeError: if it is none.
    """
    if tf.is_tensor(gradients) or not isinstance(gradients, Iterable):
        raise TypeError(f"{name} must be a list of gradients. Received: {gradients!r}")
    return list(gradients)


def gradients_of(gradients: Iterable[Any], variables: Iterable[Any]) -> list[Gradient | None]:
    """Returns gradients that their variables can be updated with.

    Args:
        gradients: for each variable a tensor, `IndexedSlices`, anything TensorFlow converts to a
            tensor, or None.
        variables: the variables.

    Raises:
        TypeError: for what is no gradient, or of a dtype that the variable cannot take; for a
            variable without gradients, such as an integer.
        ValueError: for a gradient of another shape than its variable's.
    """
    pairs = zip(gradients, variables, strict=True)
    return [None if g is None else _gradient_of(g, variable) for g, variable in pairs]


def present_tensors(gradients: Iterable[Any]) -> list[Gradient | None]:
    """Returns gradients whose variables are not known, converted.

    Args:
        gradients: each a tensor, `IndexedSlices`, anything TensorFlow converts, or None.

    Raises:
        TypeError: for what is no gradient.
    """
    return [None if g is None else _numeric(g, "A gradient") for g in gradients]


def _gradient_of(gradient: Any, variable: Any) -> Gradient:
    if isinstance(gradient, tf.distribute.DistributedValues):
        return gradient
    name = f"The gradient of {getattr(variable, 'path', variable.name)!r}"
    dtype = tf.as_dtype(variable.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        raise TypeError(
            f"{name} cannot be applied, because the variable holds numbers of dtype "
            f"{dtype.name}. Train floating or complex variables, and leave this one out."
        )
    gradient = _numeric(gradient, name)
    if gradient.dtype.is_complex and not dtype.is_complex:
        raise TypeError(
            f"{name} must be real, as its variable is. Received: dtype {gradient.dtype.name}"
        )
    _check_shape(name, gradient, tf.TensorShape(variable.shape))
    return gradient


def _numeric(gradient: Any, name: str) -> Gradient:
    if not isinstance(gradient, tf.IndexedSlices):
        gradient = as_tensor(name, gradient, "a tensor, `tf.IndexedSlices` or None")
    dtype = gradient.dtype
    if not (dtype.is_floating or dtype.is_complex or dtype.is_integer):
        raise TypeError(f"{name} must hold numbers. Received: dtype {dtype.name}")
    return gradient


def _check_shape(name: str, gradient: Gradient, expected: tf.TensorShape) -> None:
    if isinstance(gradient, tf.IndexedSlices):
        # Which rows, is known when the step runs; that there are as many as indices, as well. Not
        # by its own shape, which it lacks when its `dense_shape` is a list.
        shape, expected = gradient.values.shape[1:], expected[1:]
    else:
        shape = gradient.shape
    if not shape.is_compatible_with(expected):
        raise ValueError(
            f"{name} must have the shape of its variable, {tuple(expected)}. "
            f"Received: shape {tuple(shape)}"
        )


def _is_variable(value: Any) -> bool:
    known = all(hasattr(value, name) for name in ("assign", "shape", "dtype"))
    return known and not isinstance(value, type)
