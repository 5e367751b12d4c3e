"""Where a ledger keeps its rows: in memory, or in an SQLite file."""
