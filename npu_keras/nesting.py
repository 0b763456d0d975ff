# SPDX-License-Identifier: Apache-2.0
"""Wrappers around wrappers, in every flavour: one loss scale, one aggregation, one owner."""

import gc
import weakref
from typing import Any

from npu_keras.aggregation import GradientAggregation
from npu_keras.mixins import StepMixin
from npu_keras.scaling import UNSCALED

KERAS_3, TF_KERAS, V1 = "Keras 3", "tf_keras", "tf.compat.v1.train"
HOMES = {KERAS_3: "npu_keras", TF_KERAS: "npu_keras.tf_keras", V1: "npu_keras.v1"}
"""Where the classes for each kind of optimizer are."""

_owners: "weakref.WeakKeyDictionary[Any, weakref.ref[Any]]" = weakref.WeakKeyDictionary()


def adopt(
    wrapper: StepMixin,
    opt: Any,
    scaling: tuple[Any, str] = UNSCALED,
    aggregation: GradientAggregation | None = None,
) -> None:
    """Makes what an inner optimizer of this package has, the wrapper's own.

    Args:
        wrapper: the optimizer being made.
        opt: the optimizer inside, of this package or not.
        scaling: the manager and overflow mode the wrapper was given.
        aggregation: the settings the wrapper was given.

    Raises:
        TypeError: if both of them scale, or both aggregate.
    """
    inside = opt if isinstance(opt, StepMixin) else None
    if inside is not None:
        _require_no_second(inside, type(wrapper).__name__, scaling, aggregation)
        inside._is_inner = True
    if inside is not None and inside._scaling.active:
        # One optimizer, one loss scale: that of the inner one.
        wrapper._owns_scaling, wrapper._scaling = False, inside._scaling
    wrapper._aggregation = aggregation or getattr(inside, "_aggregation", None)
    wrapper._decides_together = getattr(inside, "_decides_together", False)
    wrapper._overlaps_tail = getattr(inside, "_overlaps_tail", False)


def claim(opt: Any, owner: Any) -> None:
    """Makes `owner` the only wrapper of an inner optimizer; TypeError if there is another."""
    if _owned(opt):
        gc.collect()  # the other wrapper may be garbage held by a reference cycle
    if _owned(opt):
        raise TypeError(
            f"This {type(opt).__name__} already belongs to another wrapper; two would share its "
            "slots. Make a new inner optimizer for each wrapper."
        )
    _owners[opt] = weakref.ref(owner)


def was_claimed(opt: Any) -> bool:
    """Whether an inner optimizer has, or had, a wrapper of this package."""
    return opt in _owners


def _owned(opt: Any) -> bool:
    return opt in _owners and _owners[opt]() is not None


def scales_already(opt: Any, wrapper: str) -> TypeError:
    """Returns the error for an optimizer that cannot be given a second loss scale."""
    return TypeError(
        f"`opt` scales the loss already, and {wrapper} would divide its gradients a second "
        f"time. Pass the optimizer inside it. Received: opt={type(opt).__name__}"
    )


def wrong_optimizer(opt: Any, expected: str, example: str) -> TypeError:
    """Returns the error for what is no optimizer of a flavour; names the right module if any.

    Args:
        opt: what was received.
        expected: a key of `HOMES`.
        example: an expression that would do.
    """
    home = _home_of(opt)
    hint = ""
    if home not in (None, expected):
        hint = f"For a {home} optimizer use the class of the same name in `{HOMES[home]}`. "
    return TypeError(
        f"`opt` must be a {expected} optimizer instance, such as `{example}`. "
        f"{hint}Received: opt={opt!r}"
    )


def require_home(cls: type, expected: str) -> None:
    """Raises TypeError for an optimizer class of another flavour's that a mixin is put before.

    Args:
        cls: the class that uses the mixin.
        expected: a key of `HOMES`.
    """
    for base in cls.__mro__:
        home = _home_of_class(base) if hasattr(base, "apply_gradients") else None
        if home not in (None, expected):
            raise TypeError(
                f"In class {cls.__name__} the mixin is for {expected} optimizers, and "
                f"{base.__name__} is a {home} optimizer. Use what `{HOMES[home]}` has for it."
            )


def no_optimizer_class(cls: type, example: str) -> str:
    """Returns the text of the error for a mixin that no optimizer class stands behind.

    Args:
        cls: the class that is being made an instance of.
        example: the name of an optimizer class.
    """
    return (
        f"{cls.__name__} has no optimizer class to add loss scaling or aggregation to. Write "
        f"`class {cls.__name__}Adam({cls.__name__}, {example})` and make one of those."
    )


def _home_of(opt: Any) -> Any:
    cls = opt if isinstance(opt, type) else type(opt)
    homes = {_home_of_class(base) for base in cls.__mro__}
    return next((home for home in (TF_KERAS, KERAS_3, V1) if home in homes), None)


def _home_of_class(cls: type) -> Any:
    roots = {"tf_keras": TF_KERAS, "keras": KERAS_3, "tensorflow": V1}
    return roots.get(cls.__module__.split(".")[0])


def _require_no_second(
    inside: StepMixin, wrapper: str, scaling: tuple[Any, str], aggregation: Any
) -> None:
    if scaling[0] is not None and inside._scaling.active:
        raise scales_already(inside, wrapper)
    if aggregation is not None and inside._aggregation is not None:
        raise TypeError(
            f"`opt` aggregates gradients already, and {wrapper} would aggregate them a second "
            f"time. Ask for aggregation in one of them only. Received: opt={type(inside).__name__}"
        )
