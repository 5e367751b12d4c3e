"""Names that are imported when they are first used.

A deployed agent needs torch and numpy and starts in a second or two; GPyTorch, BoTorch
and Opacus take several more. So a package imports its names for type checkers only,
and hands them out on demand.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_imports(package: str, file: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``.

    Args:
        package: Its ``__name__``.
        file: Its ``__file__``, in which ``if TYPE_CHECKING:`` says where names live.
    """
    home = {
        alias.name: node.module
        for block in ast.parse(Path(file).read_text()).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)  # found at once next time
        return value

    return get
