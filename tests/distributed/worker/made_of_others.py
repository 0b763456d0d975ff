# SPDX-License-Identifier: Apache-2.0
"""Optimizers that leave the update to others: 0.1 times the gradient for v, 0.01 times for w."""

import keras


class ByName(keras.optimizers.Optimizer):
    """As people write them; it holds the others in a dict, and chooses by the variable's name."""

    def __init__(self):
        super().__init__(learning_rate=0.0)
        self.by_name = {"v": keras.optimizers.SGD(0.1), "w": keras.optimizers.SGD(0.01)}

    def build(self, variables):
        super().build(variables)
        for variable in variables:
            self.by_name[variable.name].build([variable])

    def apply(self, grads, trainable_variables=None):
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            self.by_name[variable.name].apply([gradient], [variable])
        self._iterations.assign_add(1)


def multi():
    """Keras' own, which makes the others when it is built."""
    made = {}

    def choose(variable):
        rate = 0.1 if variable.name == "v" else 0.01
        return made.setdefault(variable.name, keras.optimizers.SGD(rate))

    return keras.optimizers.MultiOptimizer(choose)


MADE = {"ByName": ByName}
if hasattr(keras.optimizers, "MultiOptimizer"):
    MADE["MultiOptimizer"] = multi
