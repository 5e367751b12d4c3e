"""The command line: ``botorch-dp``, or ``python -m botorch_dp``.

A command imports the library when it runs, so that help is there at once. Commands read
ledgers and certificates, which are public, and compute with public numbers. None of
them reads private records, and none of them charges a ledger.
"""

from botorch_dp.cli.entry import main

__all__ = ["main"]
