"""Silence while private records are scored, one piece of work at a time."""

import contextlib
import ctypes
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import sklearn

# Warning filters, standard output and the log belong to the whole process: where
# threads evaluate candidates (some Dask workers do), they have to take turns.
_TURN = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep back whatever is warned, printed or logged about records.

    Not by processes that had been started before, nor in files or elsewhere.
    """
    with (
        _TURN,
        open(os.devnull, "w") as nowhere,
        _streams_to(nowhere.fileno()),
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(record=True),  # whatever filters are set meanwhile
    ):
        warnings.simplefilter("ignore")
        disabled = logging.root.manager.disable
        logging.disable(sys.maxsize)
        try:
            yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def _streams_to(target: int) -> Iterator[None]:
    """Let the process's own streams end elsewhere: compiled code writes to them."""
    saved: list[tuple[int, int]] = []
    with contextlib.ExitStack() as stack:
        for stream in (1, 2):
            with contextlib.suppress(OSError):  # closed: nobody can write to it
                copy = os.dup(stream)
                stack.callback(os.close, copy)
                saved.append((stream, copy))
        _flush()
        try:
            for stream, _ in saved:
                os.dup2(target, stream)
            yield
        finally:
            _flush()
            for stream, copy in saved:
                os.dup2(copy, stream)


def _flush() -> None:
    """Write what Python and C still hold back."""
    for file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # none, closed, or of somebody's own kind
            file.flush()  # type: ignore[union-attr]
    for name in ("stdout", "stderr"):
        with contextlib.suppress(Exception):  # where C's library calls it otherwise
            # Not all streams at once: somebody may wait for a line of input.
            libc = ctypes.CDLL(None)
            libc.fflush(ctypes.c_void_p.in_dll(libc, name))


class Surroundings:
    """The caller's configuration and warning filters, for work done elsewhere."""

    def __init__(self) -> None:
        self._config: dict[str, Any] = sklearn.get_config()
        self._filters = list(warnings.filters)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Work in them, alone in this process."""
        with (
            _TURN,
            sklearn.config_context(**self._config),
            warnings.catch_warnings(),
        ):
            warnings.filters = self._filters
            yield
