"""Optional dependencies: imported when needed, with an error that says what to do."""

import importlib
from types import ModuleType

from botorch_dp.exceptions import MissingExtraError


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or say which extra of this library brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs {module.split('.')[0]}: "
            f"pip install 'botorch-dp[{extra}]'."
        ) from error
