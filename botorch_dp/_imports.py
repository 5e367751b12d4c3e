"""Names that are imported when they are first used, and optional dependencies.

A deployed agent needs torch and numpy and starts in a second or two; GPyTorch, BoTorch
and Opacus take several more. So a package imports its names for type checkers only,
and hands them out on demand.
"""

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from botorch_dp._deprecated import warn_deprecated
from botorch_dp.exceptions import MissingExtraError


def lazy_imports(
    package: str, *, renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    The package's own source says which module has a name: it imports the name under
    ``if TYPE_CHECKING:``. The modules of the package are imported on demand as well.

    Args:
        package: The package's ``__name__``.
        renamed: The new name of each deprecated one, which warns and works.
    """
    renamed = renamed or {}
    module = sys.modules[package]
    assert module.__spec__ is not None
    source = module.__spec__.loader.get_source(package)  # type: ignore[union-attr]
    home = {
        alias.name: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name in home:
            value = getattr(import_module(home[name]), name)
            setattr(module, name, value)  # found at once next time
            return value
        if name in renamed:
            new = renamed[name]
            warn_deprecated(f"{package}.{name}", f"{package}.{new}")
            return get(new)
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(module), *home})


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or say which extra of this library brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs {module.split('.')[0]}: "
            f"pip install 'botorch-dp[{extra}]'."
        ) from error
