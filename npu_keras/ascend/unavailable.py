# SPDX-License-Identifier: Apache-2.0
"""Names that scripts import, often without using them, and that nothing can stand for."""

from typing import Any, NoReturn


class Unavailable:
    """Takes the place of a class or function; whatever uses it is told why it is not there.

    Args:
        reason: why it is not there, and what is.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises RuntimeError with the reason."""
        raise RuntimeError(self._reason)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        """Raises RuntimeError, for a class that derives from it."""
        raise RuntimeError(self._reason)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(self._reason)
