# SPDX-License-Identifier: Apache-2.0
"""What all callbacks here have in common: they work in `fit` of Keras 3 and of tf_keras."""

import inspect
from typing import Any

import keras


class Callback(keras.callbacks.Callback):
    """A Keras 3 callback that tf_keras takes too.

    The list of callbacks of tf_keras 2.21.0 accepts any object with the methods of a callback, and
    asks three more questions of it. No callback here looks at the logs of a batch while the device
    is busy, so that tf_keras need not wait for them.
    """

    _supports_tf_logs = True

    def __getattr__(self, name: str) -> Any:
        # What a class declares without a value is known from the begin of training on.
        if any(name in inspect.get_annotations(base) for base in type(self).__mro__):
            raise RuntimeError(
                f"{type(self).__name__} has seen no training yet. Give it to `fit` in "
                "`callbacks`; in a loop of your own call `set_model` and `on_train_begin` first."
            )
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
        )

    def _implements_train_batch_hooks(self) -> bool:
        return self._overrides("on_train_batch_begin", "on_train_batch_end")

    def _implements_test_batch_hooks(self) -> bool:
        return self._overrides("on_test_batch_begin", "on_test_batch_end")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._overrides("on_predict_batch_begin", "on_predict_batch_end")

    def _overrides(self, *hooks: str) -> bool:
        base = keras.callbacks.Callback
        return any(getattr(type(self), hook) is not getattr(base, hook) for hook in hooks)
