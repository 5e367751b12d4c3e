"""Storage of a ledger's rows in an SQLite file that is only ever appended to.

The file is the record of what was spent, so losing or misreading it would under-report.
Therefore the file is created under another name and linked into place when complete, a
file that is not a valid ledger is refused before anything is written to it, triggers
forbid changing rows, and every commit reaches the disk.

SQLite uses a rollback journal, not a write-ahead log. The locks of a write-ahead log
belong to a file *name*, so two hard links to one ledger would not exclude each other;
the locks of a rollback journal belong to the file. A ledger with a second hard link is
refused nevertheless, because the journal itself follows the name.

Every read and every charge compares the ledger's header and the digest of the last row
that the reader knows (:mod:`~botorch_dp.privacy.stores.chain`). Every process that has
seen more rows notices if the file was replaced by another ledger or by an older copy.

Connections last for one operation, and only SQLite opens the file. A connection that is
carried through a fork, or any other handle on the file that is closed, would silently
drop the locks that protect a shared cap.
"""

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from botorch_dp.exceptions import LedgerError, LedgerUnavailableError
from botorch_dp.privacy.stores.chain import Head, follow, start

_APPLICATION_ID = 0x42444C32  # "BDL2"
_EARLIER_ID = 0x42444C31  # "BDL1": no units, plans and digests
_LOCK_TIMEOUT_SECONDS = 120.0
# The file cannot be opened, is locked by others, or may not be written.
_UNAVAILABLE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
# SQLite's own message about a damaged file may contain a damaged text.
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)

_TRIGGERS = {
    f"{table}_{when}": f"""CREATE TRIGGER {table}_{when} BEFORE {when} ON {table}
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"""
    for table in ("header", "rows")
    for when in ("UPDATE", "DELETE")
}
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
CREATE TABLE header (text TEXT NOT NULL);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    text TEXT NOT NULL,
    digest TEXT NOT NULL
);
""" + "".join(f"{trigger};\n" for trigger in _TRIGGERS.values())


class SQLiteStore:
    """A store that keeps rows in an SQLite file, which several processes may share.

    Args:
        path: The file; created if it does not exist.
        header: The id, cap and filter to store in a new file, as JSON.
    """

    def __init__(self, path: str | os.PathLike[str], header: str) -> None:
        self.path = Path(path).absolute()
        if self.path.is_dir():
            raise LedgerUnavailableError(f"{self.path} is not a ledger but a folder.")
        if not self.path.exists():
            _create(self.path, header)
        self._check()
        with self._connection() as connection:
            self.header = _read_header(connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator["SQLiteTransaction"]:
        """Hold the only write lock; commit at the end, roll back on any error."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            # Closing the connection rolls back whatever was not committed.
            yield SQLiteTransaction(connection, self)
            connection.execute("COMMIT")

    def read_after(self, head: Head) -> tuple[list[str], Head]:
        """Return the rows after ``head``, in order, and the head after them."""
        with self._connection() as connection:
            connection.execute("BEGIN")  # one snapshot for all that is compared
            return SQLiteTransaction(connection, self).read_after(head)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open the file, which must exist, for one operation."""
        self._check_links()
        try:
            with contextlib.closing(
                sqlite3.connect(
                    f"{self.path.as_uri()}?mode=rw",
                    uri=True,
                    isolation_level=None,
                    timeout=_LOCK_TIMEOUT_SECONDS,
                )
            ) as connection:
                # EXTRA also syncs the folder after the removal of the journal, which is
                # the commit, so that a power failure cannot undo a charge.
                connection.execute("PRAGMA synchronous = EXTRA")
                yield connection
        except _UNREADABLE as error:
            # The extended codes of SQLite have the kind of an error in the last byte.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = LedgerUnavailableError if code in _UNAVAILABLE else LedgerError
            raise kind(f"The ledger {self.path} cannot be used: {error}.") from error

    def _check_links(self) -> None:
        try:
            if self.path.stat().st_nlink == 1 or self.path.is_dir():
                return
            _remove_leftover_links(self.path)
            num_links = self.path.stat().st_nlink
        except OSError as error:
            raise LedgerError(
                f"The ledger {self.path} is not there any more ({error.strerror}). "
                "Without it the privacy spent is unknown: restore it from a copy."
            ) from error
        if num_links > 1:
            raise LedgerError(
                f"The ledger {self.path} has {num_links} hard links. SQLite's journal "
                "follows the name of a file, so a ledger may only have one name: "
                "remove the others."
            )

    def _check(self) -> None:
        """Raise unless the file is a valid ledger; write nothing to it.

        (SQLite may still roll back a commit that was interrupted.)
        """
        try:
            with self._connection() as connection:
                (identity,) = connection.execute("PRAGMA application_id").fetchone()
                (page_size,) = connection.execute("PRAGMA page_size").fetchone()
                if identity == _EARLIER_ID:
                    raise LedgerError(
                        f"{self.path} is a ledger of a development version before 0.1, "
                        "whose entries do not state who is protected. It was left as "
                        "it is: read it with that version, and give another path."
                    )
                if identity != _APPLICATION_ID:
                    raise LedgerError(
                        f"{self.path} is not a ledger: it is empty or belongs to "
                        "another program. It was left as it is; give another path."
                    )
                (verdict,) = connection.execute("PRAGMA quick_check").fetchone()
        except LedgerUnavailableError:
            raise
        except LedgerError as error:
            if not isinstance(error.__cause__, _UNREADABLE):
                raise
            raise LedgerError(
                f"{self.path} is not a ledger, or is damaged ({error.__cause__}). It "
                "was left as it is; give another path, or restore it from a copy."
            ) from error
        if self.path.stat().st_size % page_size:  # SQLite fills a cut page with zeros
            verdict = "its last page is incomplete"
        if verdict != "ok":
            raise LedgerError(
                f"The ledger {self.path} is damaged ({verdict}), so what was spent is "
                "not known. It was left as it is; restore it from a copy."
            )


class SQLiteTransaction:
    """The operations on an open ledger.

    Args:
        connection: The connection, inside a transaction.
        store: The ledger's store.
    """

    def __init__(self, connection: sqlite3.Connection, store: SQLiteStore) -> None:
        self._connection = connection
        self._store = store

    def append(self, rows: Sequence[str], head: Head) -> Head:
        """Add rows after ``head``, and return the head after them."""
        digests = head.digests(rows)
        self._connection.executemany(
            "INSERT INTO rows VALUES (?, ?, ?)",
            zip(count(head.number + 1), rows, digests, strict=False),
        )
        return head.moved(digests)

    def read_after(self, head: Head) -> tuple[list[str], Head]:
        """Return the rows after ``head``, if they continue its chain, and its end."""
        known = start(_read_header(self._connection))
        if head.number:
            row = self._connection.execute(
                "SELECT id, digest FROM rows WHERE id = ?", (head.number,)
            ).fetchone()
            known = Head(0, "") if row is None else Head(*row)
        rows = self._connection.execute(
            "SELECT id, text, digest FROM rows WHERE id > ? ORDER BY id", (head.number,)
        ).fetchall()
        _check_append_only(self._connection)
        return follow(head, known, rows, place=self._store.path)


def _check_append_only(connection: sqlite3.Connection) -> None:
    """Raise if somebody has removed a trigger, or rows at the end."""
    found = dict(
        connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    )
    if found != _TRIGGERS:
        raise LedgerError(
            "The ledger was tampered with: the triggers that keep it append-only were "
            "changed. The privacy spent is unknown: restore the newest copy."
        )
    # SQLite remembers the largest id that it has ever assigned.
    (assigned,) = connection.execute(
        "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'rows'"
    ).fetchone()
    first, last = connection.execute(
        "SELECT COALESCE(MIN(id), 1), COALESCE(MAX(id), 0) FROM rows"
    ).fetchone()
    if first < 1:
        raise LedgerError(
            f"The ledger was tampered with: it has a row with the number {first}."
        )
    if assigned != last:
        raise LedgerError(
            f"The ledger was tampered with: its last row has number {last}, and "
            f"{assigned} were written. The privacy spent is unknown: restore the "
            "newest copy."
        )


def _read_header(connection: sqlite3.Connection) -> str:
    rows = connection.execute("SELECT text FROM header").fetchall()
    if len(rows) != 1:
        raise LedgerError(f"The ledger is damaged: it has {len(rows)} headers.")
    return str(rows[0][0])


def _create(path: Path, header: str) -> None:
    """Create a complete ledger under another name, then link it into place."""
    if not path.parent.is_dir():
        raise LedgerError(
            f"The ledger {path} cannot be created: there is no folder {path.parent}."
        )
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_temporary_prefix(path))
    os.close(handle)
    try:
        with contextlib.closing(
            sqlite3.connect(name, isolation_level=None)
        ) as connection:
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO header VALUES (?)", (header,))
        with contextlib.suppress(FileExistsError):  # another process came first
            os.link(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _remove_leftover_links(path: Path) -> None:
    """Remove the name under which the file was created, if that was interrupted."""
    for other in path.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if other.name.startswith(_temporary_prefix(path)) and other.samefile(path):
                other.unlink()


def _temporary_prefix(path: Path) -> str:
    return f".{path.name}."
