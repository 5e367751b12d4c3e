"""A mark for interfaces that may still change."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from botorch_dp.exceptions import ExperimentalWarning

_T = TypeVar("_T", bound=Callable[..., Any])  # a function or a class


def experimental(since: str) -> Callable[[_T], _T]:
    """Return a decorator that warns when a function is called or a class is created.

    Args:
        since: The version that adds the function or class.

    Example:
        >>> from botorch_dp._experimental import experimental
        >>> @experimental("0.2.0")
        ... class Draft:
        ...     pass
    """

    def decorate(target: _T) -> _T:
        def warn() -> None:
            warnings.warn(
                f"{target.__qualname__} is experimental (since {since}): its interface "
                "may change in any release.",
                ExperimentalWarning,
                stacklevel=3,
            )

        call: Callable[..., Any] = (
            target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        )

        @functools.wraps(call)
        def warned(*args: Any, **kwargs: Any) -> Any:
            warn()
            return call(*args, **kwargs)

        if not isinstance(target, type):
            return warned  # type: ignore[return-value]
        target.__init__ = warned  # type: ignore[misc]
        return target

    return decorate
