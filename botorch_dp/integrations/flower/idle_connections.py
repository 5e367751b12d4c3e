"""Closes idle connections.

Uvicorn waits forever for the headers of a request. Without this, a caller could occupy
all connections of the machine without ever making a call that could be refused.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """HTTP for one connection, which is closed if it stays idle.

    It extends the protocol of Uvicorn that limits the size of headers (h11).

    Attributes:
        patience: The number of seconds without a request after which the connection is
            closed; it may take up to twice as long.
        max_connections: The largest number of simultaneous connections.
    """

    patience = 10.0
    max_connections = 512

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Accept a connection, or close it if there are too many."""
        super().connection_made(transport)
        self._last: Any = None
        self._timer = self.loop.call_later(self.patience, self._check)
        if len(self.connections) > self.max_connections:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        """Close the connection if there was no request since the last check."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._last:
            self.transport.close()
            return
        self._last = self.cycle
        self._timer = self.loop.call_later(self.patience, self._check)
