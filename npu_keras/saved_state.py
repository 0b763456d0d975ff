# SPDX-License-Identifier: Apache-2.0
"""How the variables of an optimizer are saved by Keras, and loaded before there are any."""

import warnings
from typing import Any

import numpy as np

from npu_keras.journal import read


class SavedByPosition:
    """Saves variables by position, and keeps what is loaded before there are variables."""

    _pending_store: dict[str, np.ndarray] | None = None

    def _stored_variables(self) -> list[Any]:
        return list(self.variables)  # type: ignore[attr-defined]

    def save_own_variables(self, store: Any) -> None:
        """Writes variables by position.

        Args:
            store: mapping of position to value.
        """
        for position, variable in enumerate(self._stored_variables()):
            store[str(position)] = read(variable)

    def load_own_variables(self, store: Any) -> None:
        """Loads variables by position, at once or, before `build`, when it is built.

        Args:
            store: mapping of position to value.
        """
        if not self.built:  # type: ignore[attr-defined]
            self._pending_store = copied(store)
            return
        variables = self._stored_variables()
        if len(store) != len(variables):
            warnings.warn(
                f"Nothing was loaded into {type(self).__name__}: it has {len(variables)} "
                f"variables, the file has {len(store)} for it.",
                stacklevel=2,
            )
            return
        for position, variable in enumerate(variables):
            variable.assign(np.asarray(store[str(position)]))

    def _load_pending(self) -> None:
        pending, self._pending_store = self._pending_store, None
        if pending:
            self.load_own_variables(pending)


class SavedAroundInner(SavedByPosition):
    """Saves the variables of a wrapper; Keras walks on to `inner_optimizer` for the others."""

    inner_optimizer: Any
    _variables: Any
    _pending_inner: dict[str, np.ndarray] | None = None

    def _stored_variables(self) -> list[Any]:
        return list(self._variables)

    def load_own_variables(self, store: Any) -> None:
        """Loads variables by position, at once or, before `build`, when it is built.

        Args:
            store: mapping of position to value.
        """
        super().load_own_variables(store)
        inner = self.inner_optimizer
        if not self.built and not isinstance(inner, SavedByPosition):  # type: ignore[attr-defined]
            vars(inner)["load_own_variables"] = self._keep_for_inner

    def _keep_for_inner(self, store: Any) -> None:
        del vars(self.inner_optimizer)["load_own_variables"]
        self._pending_inner = copied(store)

    def _load_pending(self) -> None:
        super()._load_pending()
        pending, self._pending_inner = self._pending_inner, None
        if pending:
            self.inner_optimizer.load_own_variables(pending)


def copied(store: Any) -> dict[str, np.ndarray]:
    """Copies a store of Keras, which can be indexed but not iterated over."""
    return {key: np.array(store[key]) for key in store.keys()}  # noqa: SIM118
