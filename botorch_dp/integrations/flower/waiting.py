"""Pauses between polls, which grow with the time spent waiting."""

import time

_SHORTEST = 0.05  # seconds
_SHARE = 0.2


class Waiting:
    """Sleeps for a fifth of the time that it has been waiting, at most ``longest``.

    The delay is then at most a fifth of the whole wait, and the number of polls grows
    with its logarithm.
    """

    def __init__(self, longest: float) -> None:
        self._longest, self._since = longest, time.monotonic()

    def sleep(self) -> None:
        """Sleep until the next poll."""
        waited = time.monotonic() - self._since
        time.sleep(min(self._longest, max(_SHORTEST, _SHARE * waited)))
