# SPDX-License-Identifier: Apache-2.0
"""The tf_keras mixins: loss scaling and gradient aggregation for optimizer classes of your own."""

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from npu_keras._upstream_tf_keras import is_legacy
from npu_keras.aggregation import GradientAggregation, settings_of
from npu_keras.nesting import TF_KERAS, no_optimizer_class, require_home
from npu_keras.overflow import INF_NAN
from npu_keras.scaling import UNSCALED, require_manager
from npu_keras.tf_keras.host import TfKerasHost
from npu_keras.tf_keras.revive import revived_settings, serialized

_LossScaleOptimizer: Any = tf_keras.mixed_precision.LossScaleOptimizer
_OPTIMIZERS = (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)


def _require_mixin_first(cls: type) -> None:
    for base in inspect.getmro(cls):
        if base is TfKerasHost:
            return
        if not issubclass(base, TfKerasHost) and issubclass(base, _OPTIMIZERS):
            raise TypeError(
                f"In class {cls.__name__} the mixin must stand before the optimizer class: "
                f"`class {cls.__name__}(LossScaleMixin, {base.__name__})`."
            )


class TfKerasMixin(TfKerasHost):
    """What both mixins share: they stand before an optimizer class, in either order."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_home(cls, TF_KERAS)
        _require_mixin_first(cls)

    def __init__(
        self,
        *args: Any,
        _scaling: tuple[Any, str] = UNSCALED,
        _aggregation: GradientAggregation | None = None,
        **kwargs: Any,
    ) -> None:
        if not issubclass(type(self), _OPTIMIZERS):
            raise TypeError(no_optimizer_class(type(self), "tf_keras.optimizers.Adam"))
        super(_LossScaleOptimizer, self).__init__(*args, **kwargs)
        self._init_host(_scaling, _aggregation)

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer that updates: itself."""
        return self

    def _keep_state_variable(self, name: str, variable: tf.Variable) -> None:
        if is_legacy(self):
            self._track_trackable(variable, name)
            self._weights.append(variable)
        else:
            setattr(self, name, variable)
            self._variables.append(variable)

    def _create_all_weights(self, var_list: Sequence[Any]) -> None:
        # How a legacy optimizer is built: by its own `apply_gradients`, and for an .h5 file.
        if self.built:
            super(_LossScaleOptimizer, self)._create_all_weights(var_list)
        else:
            self.build(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the optimizer class, JSON-safe."""
        return dict(super(_LossScaleOptimizer, self).get_config())

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes an optimizer from `get_config`'s result, which is left as it is."""
        config = revived_settings(config, custom_objects)
        return super(_LossScaleOptimizer, cls).from_config(config, custom_objects=custom_objects)


class LossScaleMixin(TfKerasMixin):
    """Adds loss scaling to a tf_keras optimizer class, new or legacy.

    A `.keras` file holds nothing of a legacy optimizer, mixin or not (tf_keras 2.21.0): use `.h5`,
    `save_weights` or `tf.train.Checkpoint` for one.

    Args:
        *args: arguments of the optimizer class.
        loss_scale_manager: how the loss scale moves.
        overflow_mode: `"inf_nan"` (IEEE 754) or `"saturation"`.
        **kwargs: arguments of the optimizer class.

    Raises:
        TypeError: if the mixin stands after the optimizer class, or there is no manager.

    Example:

    ```python
    class ScaledAdam(npu_keras.tf_keras.LossScaleMixin, tf_keras.optimizers.Adam):
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
        config["loss_scale_manager"] = serialized(self.loss_scale_manager)
        config["overflow_mode"] = self.overflow_mode
        return config


class GradientAggregationMixin(TfKerasMixin):
    """Adds aggregation of gradients over ranks to a tf_keras optimizer class, new or legacy.

    Args:
        *args: arguments of the optimizer class.
        aggregation: the settings; by default the mean over ranks, by the engine found.
        **kwargs: arguments of the optimizer class.

    Raises:
        TypeError: if the mixin stands after the optimizer class.

    Example:

    ```python
    class DistributedAdam(npu_keras.tf_keras.GradientAggregationMixin, tf_keras.optimizers.Adam):
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
        config["aggregation"] = serialized(self._aggregation)
        return config
