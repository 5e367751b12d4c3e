"""Stop a search early, at moments that depend on public facts and the clock alone."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from botorch_dp._validation import check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError

# What a certificate assumes of a search that may be stopped by the clock.
TIMED = (
    "how long models take to train and score does not reveal private records: the "
    "search has a timeout, so when it stops depends on the clock"
)


def now() -> float:
    """Return the seconds on a clock that never goes back."""
    return time.monotonic()


class SearchStopped(Exception):
    """A search has reached its limit, before the next model is trained.

    Attributes:
        reason: ``"timeout"`` or ``"max_fits"``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Limits:
    """The limits of one call of ``fit`` or ``resume``, which starts now.

    They are checked before and between models, never while private records are
    scored. The number of models is public. The clock is not a function of private
    values, but the duration of earlier models may depend on them: see ``TIMED``.

    Attributes:
        timeout: How many seconds the search may take; None for no limit.
        max_fits: How many models it may train; None for no limit.
        num_fits: How many models it has trained.
    """

    timeout: float | None = None
    max_fits: int | None = None
    num_fits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_positive("timeout", self.timeout)
        if self.max_fits is not None:
            check_count("max_fits", self.max_fits)
        self._start = now()

    def check(self, num_models: int = 0) -> None:
        """Raise unless the search may go on, and train so many models at once.

        Raises:
            SearchStopped: If a limit is reached.
            InvalidArgumentError: If ``max_fits`` does not even allow the first release.
        """
        if self.timeout is not None and now() - self._start >= self.timeout:
            raise SearchStopped("timeout")
        if self.max_fits is None or self.num_fits + num_models <= self.max_fits:
            return
        if self.num_fits == 0:
            raise InvalidArgumentError(
                f"max_fits must be at least {num_models} here, the number of models "
                f"before the next release, got {self.max_fits!r}. Nothing was trained. "
                "max_evaluations plans a smaller search."
            )
        raise SearchStopped("max_fits")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until a release that is being paid for has been kept.

    Only the main thread gets signals, and only Python's own handlers can wait.
    """
    previous = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(previous):
        yield
        return
    waiting = []
    signal.signal(signal.SIGINT, lambda *signals: waiting.append(signals))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if waiting:
            previous(*waiting[0])
