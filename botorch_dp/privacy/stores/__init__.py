"""Where a ledger keeps its rows: in memory, or in an SQLite file."""

from botorch_dp.privacy.stores.chain import Head, start
from botorch_dp.privacy.stores.memory import MemoryStore
from botorch_dp.privacy.stores.sqlite import SQLiteStore

__all__ = ["Head", "MemoryStore", "SQLiteStore", "start"]
