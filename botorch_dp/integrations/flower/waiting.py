"""Sleep between looks: little at first, more the longer nothing comes."""

import time

_SHORTEST = 0.05  # seconds
_SHARE = 0.2


class Waiting:
    """Sleeps for a fifth of the time that it has been waiting.

    So what arrives waits for a fifth of its own time at most, and the number of looks
    grows with the logarithm of the time.

    Args:
        longest: The longest sleep in seconds.
    """

    def __init__(self, longest: float) -> None:
        self._longest, self._since = longest, time.monotonic()

    def sleep(self) -> None:
        """Sleep until the next look."""
        waited = time.monotonic() - self._since
        time.sleep(min(self._longest, max(_SHORTEST, _SHARE * waited)))
