"""Connections that say nothing are closed.

Uvicorn waits forever for the headers of a request. So a caller could hold as many
connections as the machine has, without ever making a call that could be refused.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """HTTP for one connection, which ends when no request is at work for a while.

    It is the protocol of Uvicorn that bounds the size of headers (h11).

    Attributes:
        patience: After how many seconds without a request the connection is closed, at
            the earliest; at the latest after twice as many.
        max_connections: The number of connections at the same time.
    """

    patience = 10.0
    max_connections = 512

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Take a connection, or close it if there are too many."""
        super().connection_made(transport)
        self._last: Any = None
        self._timer = self.loop.call_later(self.patience, self._look)
        if len(self.connections) > self.max_connections:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Close the connection if nothing was asked since the last look."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._last:
            self.transport.close()
            return
        self._last = self.cycle
        self._timer = self.loop.call_later(self.patience, self._look)
