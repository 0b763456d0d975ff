# SPDX-License-Identifier: Apache-2.0
"""Weight-update sharding: each rank updates the variables it owns, then sends them to the others.

Owners are contiguous in the order of the variables and balanced by bytes. Slots exist only where
they are owned, so that the memory for them shrinks with the number of ranks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from npu_keras._upstream import clip_gradients, slots_by_reference
from npu_keras.buckets import fair_division
from npu_keras.engines import Engine
from npu_keras.journal import read
from npu_keras.sparse import Gradient
from npu_keras.startup import take_lanes


class Slot(NamedTuple):
    """One slot of one variable: `key` names both in a checkpoint."""

    key: str
    variable: Any


class WeightUpdateSharding:
    """Who owns which variable, and the inner optimizer's work on the own ones.

    Args:
        optimizer: the Keras optimizer that updates; it is built here, for the owned variables.
        engine: how updated variables travel.
        variables: all trained variables, in order.

    Raises:
        ValueError: if there are more ranks than variables.
    """

    def __init__(self, optimizer: Any, engine: Engine, variables: Sequence[Any]) -> None:
        self._optimizer, self._engine = optimizer, engine
        self._variables = list(variables)
        self.owners = fair_division([_bytes(v) for v in variables], engine.size)
        self._lane: int | None = None
        self._slots = self._build_owned()
        vars(optimizer).update(save_own_variables=self.save, load_own_variables=self.load)

    def owned(self) -> list[int]:
        """Returns the positions of the variables this rank owns."""
        return self._owned_by(self._engine.rank)

    def apply(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> None:
        """Updates the owned variables among these; the others wait for `publish`.

        Args:
            gradients: the aggregate, the same on every rank.
            variables: their variables.
        """
        optimizer = self._optimizer
        norm, optimizer.global_clipnorm = optimizer.global_clipnorm, None
        try:
            if norm is not None:  # over all gradients, which the owned ones alone cannot give
                gradients = clip_gradients(optimizer, gradients, norm)
            owned = {id(self._variables[position]) for position in self.owned()}
            pairs = zip(gradients, variables, strict=True)
            mine = [(gradient, v) for gradient, v in pairs if id(v) in owned]
            if mine:
                optimizer.apply([g for g, _ in mine], [v for _, v in mine])
            else:
                optimizer._iterations.assign_add(1)
        finally:
            optimizer.global_clipnorm = norm

    def publish(self) -> None:
        """Gives every rank the owners' variables; the same collectives in every step."""
        for rank in range(self._engine.size):
            variables = [self._variables[position] for position in self._owned_by(rank)]
            received = self._broadcast([tf.convert_to_tensor(v) for v in variables], rank)
            for variable, value in zip(variables, received, strict=True):
                variable.assign(value)

    def finalize(self) -> None:
        """Sets the final values of the owned variables, then gives them to every rank."""
        mine = [self._variables[position] for position in self.owned()]
        self._optimizer.finalize_variable_values(mine)
        self.publish()

    def save(self, store: Any) -> None:
        """Writes all slots of all ranks, which therefore all have to save.

        Args:
            store: mapping of names to values.
        """
        for i, variable in enumerate(self._common()):
            store[str(i)] = read(variable)
        for key, value in self._every_slot():
            store[key] = value

    def load(self, store: Any) -> None:
        """Reads the slots of the owned variables, whatever number of ranks has saved them.

        Args:
            store: mapping of names to values.
        """
        for i, variable in enumerate(self._common()):
            variable.assign(np.asarray(store[str(i)]))
        for slots in self._slots.values():
            for slot in slots:
                slot.variable.assign(np.asarray(store[slot.key]))

    def common_variables(self) -> list[Any]:
        """Returns the inner optimizer's variables that every rank has: no slots."""
        return self._common()

    def _build_owned(self) -> dict[int, list[Slot]]:
        mine = [self._variables[position] for position in self.owned()]
        made = slots_by_reference(self._optimizer, mine)
        slots: dict[int, list[Slot]] = {position: [] for position in self.owned()}
        for reference, name, variable in made:
            position = self.owned()[reference]
            slots[position].append(Slot(f"{position}:{name}", variable))
        return slots

    def _common(self) -> list[Any]:
        slots = {id(slot.variable) for slots in self._slots.values() for slot in slots}
        return [v for v in self._optimizer.variables if id(v) not in slots]

    def _every_slot(self) -> list[tuple[str, np.ndarray]]:
        names = [slot.key.split(":", 1)[1] for slot in next(iter(self._slots.values()))]
        every: list[tuple[str, np.ndarray]] = []
        for rank in range(self._engine.size):
            keys, values = self._slots_of(rank, names)
            received = self._broadcast(values, rank)
            every += zip(keys, (value.numpy() for value in received), strict=True)
        return every

    def _slots_of(self, rank: int, names: Sequence[str]) -> tuple[list[str], list[tf.Tensor]]:
        keys = [f"{position}:{name}" for position in self._owned_by(rank) for name in names]
        if rank == self._engine.rank:
            slots = {slot.key: slot.variable for own in self._slots.values() for slot in own}
            return keys, [tf.convert_to_tensor(slots[key]) for key in keys]
        positions = [int(key.split(":", 1)[0]) for key in keys]
        return keys, [tf.zeros_like(self._variables[position]) for position in positions]

    def _owned_by(self, rank: int) -> list[int]:
        return [position for position, owner in enumerate(self.owners) if owner == rank]

    def _broadcast(self, values: Sequence[tf.Tensor], rank: int) -> list[tf.Tensor]:
        label = f"variables of rank {rank}"
        if self._lane is None:  # after the ranks have agreed on lanes
            self._lane = take_lanes(self._engine, self._engine.size)
        lane = self._lane + rank
        return self._engine.broadcast(values, root_rank=rank, lane=lane, label=label)


def _bytes(variable: Any) -> int:
    return tf.TensorShape(variable.shape).num_elements() * tf.as_dtype(variable.dtype).size
