"""Storage of a ledger's rows in a PostgreSQL database that a company shares.

``postgresql://host/database?ledger=patients-2026`` names one ledger, that of one data
set. A database can have many; they share two tables and nothing else.

* A charge is one transaction. It first locks the row of the ledger's header, then reads
  what others have charged, decides, and appends. It runs at READ COMMITTED, where each
  statement sees what was committed before the statement began: what is read after the
  lock was granted includes the charge of whoever had the lock before. (At REPEATABLE
  READ the snapshot would be older than the lock.)
* ``synchronous_commit`` is on for the transaction, whatever the server's default is. A
  server that does not write to its disk at all (``fsync = off``) is refused.
* If the connection is lost during COMMIT, nobody knows whether the charge was recorded.
  The charge then raises, so nothing is drawn. The next operation reads the rows again,
  and counts the charge if it was recorded.
* Connections last for one operation, as with SQLite. Nothing is carried through a fork,
  and a server that was restarted is found again.
* A URL with a password is refused. The URL of a ledger is public: it is in error
  messages, summaries and pickles. PostgreSQL's clients read the password from
  ``PGPASSWORD``, from a password file or from a service file.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from botorch_dp._imports import import_extra
from botorch_dp.exceptions import (
    InvalidArgumentError,
    LedgerError,
    LedgerUnavailableError,
)
from botorch_dp.privacy.stores import postgres_schema as schema
from botorch_dp.privacy.stores.chain import Head, follow, start

if TYPE_CHECKING:
    import psycopg

_PREFIXES = ("postgresql://", "postgres://")
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
_CONNECT_TIMEOUT_SECONDS = 30
_LOCK_TIMEOUT_SECONDS = 120
_BEGIN = f"""
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL synchronous_commit TO on;
SET LOCAL lock_timeout TO '{_LOCK_TIMEOUT_SECONDS}s';
"""
# One snapshot for all that is compared.
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Only one process at a time creates the tables: this number is our name for that.
_CREATION_LOCK = 0x42444C32


class PostgresStore:
    """A store that keeps rows in a PostgreSQL database, which many processes share.

    Args:
        url: The database and the name of the ledger, without a password.
        header: The id, cap and filter to store if the ledger does not exist, as JSON.
        create: Whether to create the ledger if it does not exist.
    """

    def __init__(self, url: str, header: str, *, create: bool = True) -> None:
        self.path, self.name, self._conninfo = _parse(url)
        with self._connection() as connection:
            if not self._exists(connection):
                if not create:
                    raise LedgerError(
                        f"There is no ledger {self.path}: check its name. To create "
                        "it, give its cap, or create=True for one without a cap."
                    )
                self._create(connection, header)
            self._check_triggers(connection)
            self.header = self._read_header(connection)

    @classmethod
    def exists(cls, url: str) -> bool:
        """Return whether there is such a ledger; create nothing."""
        store = cls.__new__(cls)
        store.path, store.name, store._conninfo = _parse(url)
        with store._connection() as connection:
            return store._exists(connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator["PostgresTransaction"]:
        """Lock the ledger; commit at the end, roll back on any error."""
        with self._connection() as connection:
            connection.execute(_BEGIN)
            self._lock(connection)
            # Closing the connection rolls back whatever was not committed.
            yield PostgresTransaction(connection, self)
            self._commit(connection)

    def read_after(self, head: Head) -> tuple[list[str], Head]:
        """Return the rows after ``head``, in order, and the head after them."""
        with self._connection() as connection:
            connection.execute(_BEGIN_READING)
            return PostgresTransaction(connection, self).read_after(head)

    @contextlib.contextmanager
    def _connection(self) -> Iterator["psycopg.Connection[Any]"]:
        """Connect to the server for one operation."""
        psycopg = _psycopg()
        try:
            with contextlib.closing(
                psycopg.connect(
                    **self._conninfo, autocommit=True, prepare_threshold=None
                )
            ) as connection:
                yield connection
        except psycopg.errors.InsufficientPrivilege as error:
            raise LedgerUnavailableError(
                f"The ledger {self.path} refused this: {_first_line(error)}. To charge "
                f"a ledger, a role needs {schema.CHARGE_ROLE}, and to read it, "
                f"{schema.READ_ROLE}. Only the owner of the tables creates ledgers."
            ) from error
        except psycopg.Error as error:
            is_outage = isinstance(error, psycopg.OperationalError)
            kind = LedgerUnavailableError if is_outage else LedgerError
            raise kind(
                f"The ledger {self.path} cannot be used: {_first_line(error)}."
            ) from error

    def _lock(self, connection: "psycopg.Connection[Any]") -> None:
        """Wait until no other charge of this ledger is under way."""
        found, fsync = _one_row(
            connection,
            f"SELECT {schema.SCHEMA}.lock_ledger(%s), current_setting('fsync')",
            (self.name,),
        )
        if not found:
            self._raise_missing()
        if fsync != "on":
            raise LedgerError(
                f"The ledger {self.path} is on a server with fsync={fsync}, where a "
                "power failure can undo a charge. Set fsync=on."
            )

    def _commit(self, connection: "psycopg.Connection[Any]") -> None:
        psycopg = _psycopg()
        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise LedgerError(
                f"The connection to the ledger {self.path} was lost during a commit "
                f"({_first_line(error)}). The charge may have been recorded; if so, it "
                "counts. Nothing was drawn."
            ) from error
        if status != "COMMIT":  # the server rolls a failed transaction back silently
            raise LedgerError(
                f"The ledger {self.path} did not record the charge: {status}."
            )

    def _exists(self, connection: "psycopg.Connection[Any]") -> bool:
        (table,) = _one_row(
            connection, "SELECT to_regclass(%s)", (f"{schema.SCHEMA}.headers",)
        )
        if table is None:
            return False
        (found,) = _one_row(
            connection,
            f"SELECT count(*) FROM {schema.SCHEMA}.headers WHERE name = %s",
            (self.name,),
        )
        return bool(found)

    def _create(self, connection: "psycopg.Connection[Any]", header: str) -> None:
        """Create the ledger, and the tables if it is the first one."""
        connection.execute(_BEGIN)
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION_LOCK,))
        if _schema_of(connection) is None:
            connection.execute(schema.CREATE_TABLES)
        connection.execute(  # another process may have come first
            f"INSERT INTO {schema.SCHEMA}.headers VALUES (%s, %s) "
            "ON CONFLICT DO NOTHING",
            (self.name, header),
        )
        self._commit(connection)

    def _check_triggers(self, connection: "psycopg.Connection[Any]") -> None:
        found = dict(
            connection.execute(
                "SELECT t.tgname, p.prosrc FROM pg_catalog.pg_trigger t "
                "JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid "
                "WHERE t.tgrelid = ANY(%s::regclass[]) AND t.tgenabled = 'A' "
                "AND t.tgqual IS NULL",
                ([schema.table_of(name) for name in schema.TRIGGERS],),
            ).fetchall()
        )
        number = len(found.keys() & schema.TRIGGERS.keys())
        if number != len(schema.TRIGGERS):
            raise LedgerError(
                f"The ledger {self.path} is not protected: only {number} of the "
                f"{len(schema.TRIGGERS)} triggers that refuse changes are enabled. "
                "Find out who disabled them, and enable them ALWAYS."
            )
        for name, function in schema.TRIGGERS.items():
            if found[name] != schema.FUNCTIONS[function]:
                raise LedgerError(
                    f"The ledger {self.path} is not protected: somebody has replaced "
                    f"{schema.SCHEMA}.{function}(), which refuses changes. Find out "
                    "who did, and what was changed."
                )

    def _read_header(self, connection: "psycopg.Connection[Any]") -> str:
        row = connection.execute(
            f"SELECT text FROM {schema.SCHEMA}.headers WHERE name = %s", (self.name,)
        ).fetchone()
        if row is None:
            self._raise_missing()
        return str(row[0])

    def _raise_missing(self) -> NoReturn:
        raise LedgerError(
            f"The ledger {self.path} is not there any more. Without it the privacy "
            "spent is unknown: restore it from a copy."
        )


class PostgresTransaction:
    """The operations on an open ledger.

    Args:
        connection: The connection, inside a transaction.
        store: The ledger's store.
    """

    def __init__(
        self, connection: "psycopg.Connection[Any]", store: PostgresStore
    ) -> None:
        self._connection = connection
        self._store = store

    def append(self, rows: Sequence[str], head: Head) -> Head:
        """Add rows after ``head``, and return the head after them."""
        digests = head.digests(rows)
        numbers = list(range(head.number + 1, head.number + 1 + len(rows)))
        self._connection.execute(
            f"INSERT INTO {schema.SCHEMA}.rows "
            "SELECT %s, r.number, r.text, r.digest "
            "FROM unnest(%s::bigint[], %s::text[], %s::text[]) "
            "AS r (number, text, digest) ORDER BY r.number",
            (self._store.name, numbers, list(rows), digests),
        )
        return head.moved(digests)

    def read_after(self, head: Head) -> tuple[list[str], Head]:
        """Return the rows after ``head``, if they continue its chain, and its end."""
        known = start(self._store._read_header(self._connection))
        if head.number:
            known = Head(0, "")
        rows = self._connection.execute(
            f"SELECT number, text, digest FROM {schema.SCHEMA}.rows "
            "WHERE ledger = %s AND number >= %s ORDER BY number",
            (self._store.name, head.number),
        ).fetchall()
        if head.number and rows and rows[0][0] == head.number:
            known = Head(rows[0][0], rows[0][2])
            del rows[0]
        found = follow(head, known, rows, place=self._store.path)
        self._refuse_lost_end()
        return found

    def _refuse_lost_end(self) -> None:
        """Raise if somebody has removed rows from the end."""
        written, first, last = _one_row(
            self._connection,
            f"SELECT (SELECT number FROM {schema.SCHEMA}.ends WHERE ledger = %(name)s),"
            f" min(number), max(number) FROM {schema.SCHEMA}.rows "
            "WHERE ledger = %(name)s",
            {"name": self._store.name},
        )
        if first is not None and first < 1:
            raise LedgerError(
                f"The ledger {self._store.path} was tampered with: it has a row with "
                f"the number {first}."
            )
        if written != last:
            raise LedgerError(
                f"The ledger {self._store.path} was tampered with: its last row has "
                f"number {last}, and {written} were written. The privacy spent is "
                "unknown: restore the newest copy."
            )


def is_postgres_url(path: object) -> bool:
    """Return whether a path is the URL of a PostgreSQL database."""
    return isinstance(path, str) and path.startswith(_PREFIXES)


def grant_roles(url: str) -> None:
    """Create the roles ``botorch_dp_charge`` and ``botorch_dp_read``.

    A member of ``botorch_dp_charge`` may charge and read every ledger of the database,
    and a member of ``botorch_dp_read`` may read them. Neither may create a ledger,
    change or remove a row, or disable a trigger.

    Args:
        url: The URL of any ledger of the database, as the owner of its tables, who also
            needs the right to create roles.

    Example:
        >>> url = "postgresql://owner@db/privacy?ledger=patients-2026"
        >>> grant_roles(url)  # doctest: +SKIP
    """
    store = PostgresStore.__new__(PostgresStore)
    store.path, store.name, store._conninfo = _parse(url)
    with store._connection() as connection:
        if not store._exists(connection):
            raise LedgerError(
                f"There is no ledger {store.path}: create it first, with "
                "Ledger(url, cap=...)."
            )
        connection.execute(schema.GRANT_ROLES)


def _parse(url: str) -> tuple[str, str, dict[str, Any]]:
    """Return a URL without secrets, the ledger's name, and how to connect."""
    psycopg = _psycopg()
    base, _, query = url.partition("?")
    options = [option for option in query.split("&") if option]
    names = [option[7:] for option in options if option.startswith("ledger=")]
    if len(names) != 1 or not names[0]:
        raise InvalidArgumentError(
            "path must name one ledger, usually after its data set, as in "
            "'postgresql://host/database?ledger=patients-2026'."
        )
    others = [option for option in options if not option.startswith("ledger=")]
    try:
        conninfo = psycopg.conninfo.conninfo_to_dict(
            base + ("?" + "&".join(others) if others else "")
        )
    except psycopg.Error:
        conninfo = None  # the message may have a part of a password
    if conninfo is None or _is_cut(conninfo):
        raise InvalidArgumentError(
            "path starts like the URL of a PostgreSQL database, and is not one. It "
            "looks like 'postgresql://user@host:5432/database?ledger=name'."
        )
    if any(conninfo.get(secret) for secret in _SECRETS):
        raise InvalidArgumentError(
            "path must not have a password, because the URL of a ledger is public. Set "
            "PGPASSWORD, or use a password file (~/.pgpass)."
        )
    path = f"{base}?{'&'.join([*others, f'ledger={names[0]}'])}"
    conninfo.setdefault("connect_timeout", _CONNECT_TIMEOUT_SECONDS)
    return path, unquote(names[0]), conninfo


def _is_cut(conninfo: dict[str, Any]) -> bool:
    """Return whether a slash in a password seems to have ended the host."""
    ports = str(conninfo.get("port", "")).replace(",", "")
    return "@" in conninfo.get("dbname", "") or not (ports.isdigit() or not ports)


def _schema_of(connection: "psycopg.Connection[Any]") -> Any:
    (found,) = _one_row(connection, "SELECT to_regnamespace(%s)", (schema.SCHEMA,))
    return found


def _one_row(
    connection: "psycopg.Connection[Any]",
    query: str,
    arguments: Sequence[Any] | Mapping[str, Any],
) -> tuple[Any, ...]:
    row = connection.execute(query, arguments).fetchone()
    assert row is not None
    return tuple(row)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _psycopg() -> Any:
    return import_extra(
        "psycopg", extra="postgres", purpose="A ledger on a PostgreSQL server"
    )
