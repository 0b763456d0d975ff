# SPDX-License-Identifier: Apache-2.0
"""Settings of a run that optimizers have to agree with."""

from npu_keras._arguments import flag

_current: list["NPURunConfig"] = []


class NPURunConfig:
    """Run-wide settings; the newest one made is in force, and optimizers made later must agree.

    Args:
        is_tailing_optimization: whether the last part of the aggregation overlaps the update.

    Example:

    ```python
    npu_keras.NPURunConfig(is_tailing_optimization=True)
    optimizer = npu_keras.NPUOptimizer(opt, is_distributed=True, is_tailing_optimization=True)
    ```
    """

    def __init__(self, *, is_tailing_optimization: bool = False) -> None:
        self.is_tailing_optimization = flag("is_tailing_optimization", is_tailing_optimization)
        _current[:] = [self]

    @staticmethod
    def clear() -> None:
        """Puts no run configuration in force."""
        _current.clear()


def check_tailing(is_tailing_optimization: bool) -> None:
    """Raises ValueError if the run configuration in force says otherwise.

    Args:
        is_tailing_optimization: the optimizer's flag.
    """
    if _current and _current[0].is_tailing_optimization != is_tailing_optimization:
        raise ValueError(
            "`is_tailing_optimization` of the optimizer and of `NPURunConfig` must agree. "
            f"Received: {is_tailing_optimization} for the optimizer, "
            f"{_current[0].is_tailing_optimization} for NPURunConfig."
        )
