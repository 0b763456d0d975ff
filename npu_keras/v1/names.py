# SPDX-License-Identifier: Apache-2.0
"""What a `tf.compat.v1.train.Optimizer` is asked for beside its steps: slots, checkpoints."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from npu_keras._upstream import BOOKKEEPING
from npu_keras.mixins import StepMixin
from npu_keras.state import VariableSpec
from npu_keras.v1.graph_managers import InGraph, original
from npu_keras.v1.graph_state import GraphState

_PLAIN = ("loss_scale", "good_steps", "bad_steps")
"""State variables that go by their bare names, as in TensorFlow 1 (in a graph their values do)."""


class V1Names(StepMixin):
    """The interface of the inner optimizer, and the variables around it."""

    inner_optimizer: Any
    _name: str
    _plain_names: bool
    _graph_state: GraphState | None = None
    _trained: list[Any]
    _positions: dict[Any, int]

    @property
    def loss_scale_manager(self) -> Any:
        """The manager: how the loss scale moves."""
        return original(self._scaling.manager)

    @property
    def loss_scale(self) -> Any:
        """float32 scalar variable or tensor: the factor on the loss of the next step."""
        manager = self._scaling.manager
        if isinstance(manager, InGraph):
            return manager.manager.get_loss_scale()
        return self._scaling.state.loss_scale

    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Not for these optimizers: `compute_gradients` scales and unscales."""
        raise RuntimeError(
            f"{type(self).__name__} scales the loss itself. Pass the plain loss (eagerly: a "
            "function that returns it) to `compute_gradients` or `minimize`."
        )

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns the inner optimizer's slot of a variable, or None.

        Args:
            var: the variable.
            name: one of `get_slot_names()`.
        """
        return self._target().get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the inner optimizer's slots."""
        return self._target().get_slot_names()

    def variables(self) -> list[Any]:
        """Returns the state of the loss scale, then the inner optimizer's variables.

        With the states of all wrappers: Keras initializes these variables, and saves all there are.
        """
        own = [variable for _, variable in self._scaling.state]
        opt = self.inner_optimizer
        inner = opt.variables() if isinstance(opt, V1Names) else self._inner_variables()
        return list({id(variable): variable for variable in [*own, *inner]}.values())

    def _inner_variables(self) -> list[Any]:
        variables = getattr(self._target(), "variables", list)
        return list(variables() if callable(variables) else variables)

    def _target(self) -> Any:
        """The optimizer that does the updating."""
        opt = self.inner_optimizer
        return opt._target() if isinstance(opt, V1Names) else opt

    def _create_state_variable(self, spec: VariableSpec) -> Any:
        plain = self._plain_names and spec.name in _PLAIN
        if plain and self._graph_state is not None:
            variable = getattr(self._graph_state, spec.name)
            self._track_trackable(variable, spec.name, overwrite=True)
            return variable
        # TensorFlow 1 counts in int32.
        dtype = tf.int32 if spec.name in ("good_steps", "bad_steps") else tf.as_dtype(spec.dtype)
        with tf.init_scope():
            variable = tf.compat.v1.Variable(
                lambda: tf.cast(tf.fill(spec.shape, spec.initial_value), dtype),
                trainable=False,
                use_resource=True,
                name=spec.name if plain else f"{self._name}/{spec.name}",
            )
        self._track_trackable(variable, spec.name, overwrite=True)
        return variable

    def _named_values(self) -> list[tf.Tensor]:
        """The tensors `loss_scale:0` and so on, as far as they can be reached from here."""
        manager = self._scaling.manager
        state = manager.manager if isinstance(manager, InGraph) else self
        held = getattr(state, "graph_state" if state is not self else "_graph_state", None)
        return [] if held is None else held.named_values()

    def __dir__(self) -> list[str]:
        # TensorFlow 2.21.0 looks here for objects whose slots go into a `tf.train.Checkpoint`;
        # the slots are the inner optimizer's, which is saved, too.
        return [name for name in super().__dir__() if name != "get_slot_names"]

    def __getattr__(self, name: str) -> Any:
        # `_lr` and the like; TensorFlow's own bookkeeping of an object is not another one's.
        if name.startswith(("__", BOOKKEEPING)) or "inner_optimizer" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner_optimizer, name)

    # Hooks of StepMixin.

    def _warn_if_never_scaled(self) -> None:
        if self._scaling.scaled_a_loss:
            return
        self._scaling.scaled_a_loss = True  # warn once
        warnings.warn(
            f"`apply_gradients` of {type(self).__name__} got gradients, but no loss went through "
            "its `compute_gradients` or `minimize`: nothing is scaled, nor aggregated over ranks. "
            "Call `optimizer.compute_gradients(loss)` in place of `tf.gradients` or a tape.",
            stacklevel=4,
        )

    def _tail_obstacle(self) -> str | None:
        return None

    def _trained_variables(self) -> list[Any]:
        return list(self._trained)

    def _own_variables(self) -> list[Any]:
        return self.variables()

    def _position(self, variable: Any) -> int:
        return self._positions[variable.ref()]

    def _takes_raw(self, position: int) -> bool:
        return not self._scaling.active

    def _variable_paths(self) -> Sequence[str]:
        return [variable.name.split(":")[0] for variable in self._trained]

    def _compute_dtype(self) -> str:
        """The narrower of the dtypes that the policies of Keras 3 and tf_keras compute in."""
        dtypes = [keras.config.dtype_policy().compute_dtype]
        if "tf_keras" in sys.modules:
            policy = sys.modules["tf_keras"].mixed_precision.global_policy()
            dtypes.append(policy.compute_dtype)
        return "float16" if "float16" in dtypes else dtypes[0]
