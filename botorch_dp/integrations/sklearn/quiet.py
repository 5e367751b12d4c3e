"""Silence while private records are scored, one piece of work at a time."""

import contextlib
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

    What is written to the process's streams from outside Python is not caught.
    """
    with (
        _TURN,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        disabled = logging.root.manager.disable
        logging.disable(sys.maxsize)
        try:
            yield
        finally:
            logging.disable(disabled)


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
