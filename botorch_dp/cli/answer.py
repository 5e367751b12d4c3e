"""What a command answers, as text and as JSON."""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    Attributes:
        text: What is printed.
        data: What is printed instead with ``--json``.
        is_finding: Whether the command found what it looks for: a damaged ledger, a
            refuted claim. The exit code is then 1.
    """

    text: str
    data: Mapping[str, Any]
    is_finding: bool = False

    def to_json(self) -> str:
        """Return the data as JSON. An infinite number, which JSON lacks, is null."""
        return json.dumps(_plain(self.data), indent=2, allow_nan=False)


Command = Callable[[argparse.Namespace], Answer]


def add_command(
    commands: Any, name: str, run: Command, *, help: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command with its examples and ``--json``, and return its parser.

    Args:
        commands: What ``add_subparsers`` returned.
        name: The name of the command.
        run: The function that answers.
        help: One sentence that says what it does.
        examples: Lines to copy, for its help text.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
