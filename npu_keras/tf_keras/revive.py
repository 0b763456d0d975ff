# SPDX-License-Identifier: Apache-2.0
"""What `get_config` of the tf_keras classes holds, made into objects again."""

from typing import Any

import tf_keras

_OPTIMIZERS = (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
SETTINGS = ("loss_scale_manager", "aggregation")
OPTIMIZERS = ("opt", "optimizer")


def serialized(value: Any) -> Any:
    """Returns a JSON-safe form of an argument: an optimizer, a manager, a flag, a name, None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, _OPTIMIZERS):
        return tf_keras.optimizers.serialize(value)
    return tf_keras.saving.serialize_keras_object(value)


def revived_settings(config: dict[str, Any], custom_objects: Any = None) -> dict[str, Any]:
    """Returns a copy of a config with objects in place of their serialized form.

    Args:
        config: what `get_config` returned.
        custom_objects: classes by name, for what is not registered.
    """
    config = dict(config)
    for key in SETTINGS:
        if isinstance(config.get(key), dict):
            config[key] = tf_keras.saving.deserialize_keras_object(
                _by_registered_name(config[key]), custom_objects=custom_objects
            )
    for key in OPTIMIZERS:
        if isinstance(config.get(key), dict):
            named = _by_registered_name(config[key])
            config[key] = tf_keras.optimizers.deserialize(named, custom_objects)
    return config


def _by_registered_name(config: dict[str, Any]) -> dict[str, Any]:
    # While an .h5 file is loaded tf_keras 2.21.0 looks at `class_name` alone.
    return {**config, "class_name": config.get("registered_name") or config["class_name"]}
