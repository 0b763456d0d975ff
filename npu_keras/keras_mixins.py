# SPDX-License-Identifier: Apache-2.0
"""The Keras 3 mixins: loss scaling and gradient aggregation for optimizer classes of your own."""

import inspect
from typing import Any

import keras
from keras.optimizers import LossScaleOptimizer

from npu_keras.aggregation import GradientAggregation, settings_of
from npu_keras.host import KerasHost, revive
from npu_keras.nesting import KERAS_3, no_optimizer_class, require_home
from npu_keras.overflow import INF_NAN
from npu_keras.scaling import require_manager


def _require_mixin_first(cls: type) -> None:
    for base in inspect.getmro(cls):
        if base is KerasHost:
            return
        if not issubclass(base, KerasHost) and issubclass(base, keras.optimizers.Optimizer):
            raise TypeError(
                f"In class {cls.__name__} the mixin must stand before the optimizer class: "
                f"`class {cls.__name__}(LossScaleMixin, {base.__name__})`."
            )


def _updates(cls: type) -> bool:
    """Whether the optimizer class behind the mixin updates weights, or has others do so."""
    base = keras.optimizers.Optimizer
    by_itself = cls.update_step is not base.update_step  # type: ignore[attr-defined]
    return by_itself or super(LossScaleOptimizer, cls).apply is not base.apply


class KerasMixin(KerasHost):
    """What both mixins share: they stand before an optimizer class, in either order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not _updates(type(self)):
            raise TypeError(no_optimizer_class(type(self), "keras.optimizers.Adam"))
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_home(cls, KERAS_3)
        _require_mixin_first(cls)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the optimizer class, JSON-safe."""
        config = dict(super(LossScaleOptimizer, self).get_config())
        config.pop("loss_scale_factor", None)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from `get_config`'s result, which is left as it is."""
        config = dict(config)
        for key in ("loss_scale_manager", "aggregation"):
            if key in config:
                config[key] = revive(config[key], custom_objects)
        return super(LossScaleOptimizer, cls).from_config(config, custom_objects=custom_objects)


class LossScaleMixin(KerasMixin):
    """Adds loss scaling to a Keras 3 optimizer class.

    Args:
        *args: arguments of the optimizer class.
        loss_scale_manager: how the loss scale moves.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"`.
        **kwargs: arguments of the optimizer class.

    Raises:
        TypeError: if the mixin stands after the optimizer class, or there is no manager.

    Example:

    ```python
    class ScaledAdam(npu_keras.LossScaleMixin, keras.optimizers.Adam):
        pass

    manager = npu_keras.ExponentialUpdateLossScaleManager(2**15, 2000)
    model.compile(ScaledAdam(1e-3, loss_scale_manager=manager), loss="mse")
    ```
    """

    def __init__(
        self, *args: Any, loss_scale_manager: Any, overflow_mode: str = INF_NAN, **kwargs: Any
    ) -> None:
        scaling = (require_manager(loss_scale_manager), overflow_mode)
        super().__init__(*args, _scaling=scaling, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the optimizer class and of the mixin, JSON-safe."""
        config = super().get_config()
        config["loss_scale_manager"] = keras.saving.serialize_keras_object(self.loss_scale_manager)
        config["overflow_mode"] = self.overflow_mode
        return config


class GradientAggregationMixin(KerasMixin):
    """Adds aggregation of gradients over ranks to a Keras 3 optimizer class.

    Args:
        *args: arguments of the optimizer class.
        aggregation: the settings; by default the mean over ranks, by the engine found.
        **kwargs: arguments of the optimizer class.

    Raises:
        TypeError: if the mixin stands after the optimizer class.

    Example:

    ```python
    class DistributedAdam(npu_keras.GradientAggregationMixin, keras.optimizers.Adam):
        pass

    model.compile(DistributedAdam(1e-3), loss="mse")  # under `python -m npu_keras run -n 2`
    ```
    """

    def __init__(
        self, *args: Any, aggregation: GradientAggregation | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, _aggregation=settings_of(aggregation), **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the optimizer class and of the mixin, JSON-safe."""
        config = super().get_config()
        config["aggregation"] = keras.saving.serialize_keras_object(self._aggregation)
        return config
