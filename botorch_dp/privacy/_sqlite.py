"""A ledger's SQLite file: created whole, checked before use, only ever appended to.

The file is the record of what was spent, so losing or misreading it would under-report.
It is therefore created under another name and linked into place complete, a file that
is not a sound ledger is refused before anything is written to it, triggers forbid
changing rows, and every commit reaches the disk and the main file (not only the log
beside it, which is easily left behind when a file is copied).
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
_HEADER_BYTES = 100
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
        self.path = Path(path)
        if not self.path.exists():
            _create(self.path, cap)
        _check(self.path)
        self._connection: sqlite3.Connection | None = None
        self._pid = -1
        self._inherited: list[sqlite3.Connection] = []

    @property
    def cap(self) -> str | None:
        """JSON of the stored cap."""
        row = (
            self._connect()
            .execute("SELECT value FROM properties WHERE name = 'cap'")
            .fetchone()
        )
        return None if row is None else row[0]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the only write lock; commit at the end, roll back on any error."""
        connection = self._connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be written to: {error}."
            ) from error

    def append(self, charge: dict[str, Any]) -> None:
        """Add a row. Only inside a transaction."""
        self._connect().execute(
            "INSERT INTO charges (charge) VALUES (?)", (json.dumps(charge),)
        )

    def read_after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the rows whose number is larger, in order."""
        rows = self._connect().execute(
            "SELECT id, charge FROM charges WHERE id > ? ORDER BY id", (number,)
        )
        try:
            return [(row[0], json.loads(row[1])) for row in rows]
        except (sqlite3.DatabaseError, ValueError) as error:
            raise LedgerError(f"The ledger {self.path} is damaged: {error}.") from error

    def close(self) -> None:
        """Close the file. A later call opens it again."""
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid != os.getpid():
            # SQLite forbids using, or closing, a connection carried through a fork.
            self._inherited.append(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",  # never create: see _create
                uri=True,
                isolation_level=None,
                timeout=_LOCK_TIMEOUT_SECONDS,
                check_same_thread=False,
            )
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA wal_autocheckpoint = 1")
            self._pid = os.getpid()
        return self._connection


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


def _check(path: Path) -> None:
    """Raise unless the file is a sound ledger; write nothing to it."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be read: {error}.") from error
    application_id = int.from_bytes(header[68:72], "big")
    if len(header) < _HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        raise LedgerError(
            f"{path} is not a ledger (or is cut short): it has no SQLite header. It "
            "was left as it is; give another path."
        )
    if application_id != _APPLICATION_ID:
        raise LedgerError(
            f"{path} is an SQLite file of another program, not a ledger. It was left "
            "as it is; give another path."
        )
    page_size = int.from_bytes(header[16:18], "big")
    try:
        with contextlib.closing(
            sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=_LOCK_TIMEOUT_SECONDS,
            )
        ) as connection:
            verdict = connection.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if path.stat().st_size % page_size:  # SQLite would fill up a cut page with zeros
        verdict = "its last page is cut short"
    if verdict != "ok":
        raise LedgerError(
            f"The ledger {path} is damaged ({verdict}), so what was spent is "
            "not known. It was left as it is; restore it from a copy."
        )
