"""Storage of the rows of a ledger: in memory, or in an SQLite file."""
