"""The server's superlink: ``python -m botorch_dp.integrations.flower.superlink``.

It is a ``flower-superlink`` with the same arguments and two differences, because the
agents' vectors pass through its database:

- Only its owner can read what it writes.
- It removes the database when it is asked to end. After a crash the database remains,
  and the superlink continues with it. ``--keep-database`` always keeps it.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from botorch_dp.integrations.flower.private_files import UMASK


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the superlink until it is stopped."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--keep-database", action="store_true")
    parser.add_argument("--database")
    own, others = parser.parse_known_args(arguments)
    os.umask(UMASK)
    # SIGTERM unwinds the stack, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # The package also has a function with the name of this module.
    flower = importlib.import_module("flwr.superlink.cli.flower_superlink")
    database = [] if own.database is None else ["--database", own.database]
    sys.argv = ["flower-superlink", *others, *database]
    try:
        flower.flower_superlink()
    finally:
        if own.database is not None and not own.keep_database:
            remove_database(own.database)


def remove_database(path: str | os.PathLike[str]) -> None:
    """Remove an SQLite database, if it exists, and the files that belong to it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{os.fspath(path)}{suffix}").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
