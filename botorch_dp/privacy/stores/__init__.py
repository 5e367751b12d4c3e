"""Storage of the rows of a ledger: in memory, in a file, or on a server."""
