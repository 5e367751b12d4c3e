"""Opening the store of a ledger, and the lock that all ledgers of a process share."""

import os
import threading
from typing import TypeAlias

from botorch_dp.privacy.stores.memory import MemoryStore
from botorch_dp.privacy.stores.postgres import PostgresStore, is_postgres_url
from botorch_dp.privacy.stores.sqlite import SQLiteStore

Store: TypeAlias = MemoryStore | SQLiteStore | PostgresStore

# All ledgers of a process share one lock. A fork waits for it, so that a child inherits
# neither a lock that nobody will release nor an open connection.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire,
        after_in_parent=LOCK.release,
        after_in_child=LOCK.release,
    )


def open_store(
    path: str | os.PathLike[str] | None, header: str, *, create: bool = True
) -> Store:
    """Open the store at a path, or create it.

    Args:
        path: A file, the URL of a PostgreSQL database, or None for memory.
        header: The header of a new ledger, as JSON.
        create: Whether to create a ledger on a server that has none of this name.
    """
    if path is None:
        return MemoryStore(header)
    if isinstance(path, str) and is_postgres_url(path):
        return PostgresStore(path, header, create=create)
    return SQLiteStore(path, header)


def store_exists(path: str) -> bool:
    """Return whether there is a ledger at a path; create nothing."""
    if is_postgres_url(path):
        return PostgresStore.exists(path)
    return os.path.exists(path)
