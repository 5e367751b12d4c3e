"""A ledger's SQLite file: created whole, checked before use, only ever appended to.

The file is the record of what was spent, so losing or misreading it would under-report.
It is therefore created under another name and linked into place complete, a file that
is not a sound ledger is refused before anything is written to it, triggers forbid
changing rows, and every commit reaches the disk and the main file (not only the log
beside it, which is easily left behind when a file is copied).

Connections last for one operation, and nothing but SQLite opens the file: a connection
carried through a fork, or any other handle on the file that is closed, would silently
drop the locks on which a shared cap rests.
"""

import contextlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botorch_dp.exceptions import LedgerError

_APPLICATION_ID = 0x42444C31  # "BDL1"
_LOCK_TIMEOUT_SECONDS = 120.0

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
CREATE TABLE properties (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE charges (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    charge TEXT NOT NULL
);
CREATE TRIGGER charges_are_final BEFORE UPDATE ON charges
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER charges_stay BEFORE DELETE ON charges
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER properties_are_final BEFORE UPDATE ON properties
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER properties_stay BEFORE DELETE ON properties
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
"""


class SQLiteStore:
    """Rows of JSON in an SQLite file that several processes may share.

    Args:
        path: The file; created if it does not exist.
        cap: JSON of the cap to store in a new file, or None for no cap.
    """

    def __init__(self, path: str | os.PathLike[str], cap: str | None) -> None:
        self.path = Path(path).absolute()
        if not self.path.exists():
            _create(self.path, cap)
        self._check()

    @property
    def cap(self) -> str | None:
        """JSON of the stored cap."""
        with self._connection() as connection:
            row = connection.execute(
                "SELECT value FROM properties WHERE name = 'cap'"
            ).fetchone()
        return None if row is None else row[0]

    @contextlib.contextmanager
    def transaction(self) -> Iterator["SQLiteTransaction"]:
        """Hold the only write lock; commit at the end, roll back on any error."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            # Closing the connection rolls back whatever was not committed.
            yield SQLiteTransaction(connection)
            connection.execute("COMMIT")

    def read_after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the rows whose number is larger, in order."""
        with self._connection() as connection:
            return SQLiteTransaction(connection).read_after(number)

    @contextlib.contextmanager
    def _connection(self, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        """Open the file, which must exist, for one operation."""
        try:
            with contextlib.closing(
                sqlite3.connect(
                    f"{self.path.as_uri()}?mode={mode}",
                    uri=True,
                    isolation_level=None,
                    timeout=_LOCK_TIMEOUT_SECONDS,
                )
            ) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA wal_autocheckpoint = 1")
                yield connection
        except sqlite3.Error as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be used: {error}."
            ) from error

    def _check(self) -> None:
        """Raise unless the file is a sound ledger; write nothing to it."""
        try:
            with self._connection(mode="ro") as connection:
                (identity,) = connection.execute("PRAGMA application_id").fetchone()
                (page_size,) = connection.execute("PRAGMA page_size").fetchone()
                if identity != _APPLICATION_ID:
                    raise LedgerError(
                        f"{self.path} is not a ledger: it is empty, or of another "
                        "program. It was left as it is; give another path."
                    )
                (verdict,) = connection.execute("PRAGMA quick_check").fetchone()
        except LedgerError as error:
            if not isinstance(error.__cause__, sqlite3.Error):
                raise
            raise LedgerError(
                f"{self.path} is not a ledger, or is damaged ({error.__cause__}). It "
                "was left as it is; give another path, or restore it from a copy."
            ) from error
        if self.path.stat().st_size % page_size:  # SQLite fills a cut page with zeros
            verdict = "its last page is cut short"
        if verdict != "ok":
            raise LedgerError(
                f"The ledger {self.path} is damaged ({verdict}), so what was spent is "
                "not known. It was left as it is; restore it from a copy."
            )


class SQLiteTransaction:
    """What can be done with an open ledger."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def append(self, charge: dict[str, Any]) -> int:
        """Add a row and return its number."""
        cursor = self._connection.execute(
            "INSERT INTO charges (charge) VALUES (?)", (json.dumps(charge),)
        )
        return int(cursor.lastrowid or 0)

    def read_after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the rows whose number is larger, in order."""
        rows = self._connection.execute(
            "SELECT id, charge FROM charges WHERE id > ? ORDER BY id", (number,)
        )
        try:
            return [(row[0], json.loads(row[1])) for row in rows]
        except ValueError as error:
            raise LedgerError(f"A row of the ledger is damaged: {error}.") from error


def _create(path: Path, cap: str | None) -> None:
    """Make a complete ledger under another name, then link it into place."""
    if not path.parent.is_dir():
        raise LedgerError(
            f"The ledger {path} cannot be created: there is no folder {path.parent}."
        )
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        connection = sqlite3.connect(name, isolation_level=None)
        connection.executescript(_SCHEMA)
        if cap is not None:
            connection.execute("INSERT INTO properties VALUES ('cap', ?)", (cap,))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(name, path)
    finally:
        os.unlink(name)
