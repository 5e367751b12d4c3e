"""Suppress all output while private records are read and scored."""

import contextlib
import ctypes
import functools
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import sklearn

# Warning filters, standard output and the log belong to the whole process, so threads
# that evaluate candidates (as some Dask workers do) must take turns.
_TURN = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, printed text and log messages.

    This does not cover processes that were started before, or other files.
    """
    with (
        _TURN,
        open(os.devnull, "w") as nowhere,
        _streams_to(nowhere.fileno()),
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(record=True),  # whatever filters are set inside
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
    """Redirect the process's own streams, to which compiled code writes."""
    saved: list[tuple[int, int]] = []
    with contextlib.ExitStack() as stack:
        for stream in (1, 2):
            with contextlib.suppress(OSError):  # the stream is closed
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
    """Flush the buffers of Python and C."""
    for file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # None, closed, or a custom object
            file.flush()  # type: ignore[union-attr]
    for name in ("stdout", "stderr"):
        with contextlib.suppress(Exception):  # other C libraries use other names
            # Flushing all streams at once would block if one waits for input.
            libc = _libc()
            libc.fflush(ctypes.c_void_p.in_dll(libc, name))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class Surroundings:
    """The caller's configuration and warning filters, for use in a worker."""

    def __init__(self) -> None:
        self._config: dict[str, Any] = sklearn.get_config()
        self._filters = list(warnings.filters)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Apply them, with exclusive use of this process's streams and filters."""
        with (
            _TURN,
            sklearn.config_context(**self._config),
            warnings.catch_warnings(),
        ):
            warnings.filters = self._filters
            yield
