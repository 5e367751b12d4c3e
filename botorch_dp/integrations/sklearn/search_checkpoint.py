"""The checkpoint of a search: public state in a file, for fits that are killed.

The file holds releases and what follows from them: never losses, records or anything
computed from them, not even a hash. Only the owner may read it, because settings may
be confidential for other reasons.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from sklearn.base import BaseEstimator

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.privacy import Ledger

_VERSION = 1
# Settings that may change between two fits of one search.
_FREE = {"checkpoint", "timeout", "max_fits", "refit", "ledger", "n_jobs", "verbose"}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHOWN = 60  # characters of a setting in a message


class SearchCheckpoint:
    """A file with the state of a search and the settings that it belongs to.

    Args:
        path: The file; None keeps nothing.
        settings: The settings of the search, from :func:`settings_of`.

    Attributes:
        state: The state in the file when it was opened, or None.
        has_ended: Whether the state is final, because the search was continued under
            another guarantee.

    Raises:
        OptimizerStateError: If the file is not a checkpoint of such a search.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, settings: dict[str, Any]
    ) -> None:
        self._path, self._settings = path, settings
        self.state: dict[str, Any] | None = None
        self.has_ended = False
        if path is not None and os.path.exists(path):
            kept = read_checkpoint(path, torch.device("cpu"))
            self._check(kept)
            self.state, self.has_ended = kept["state"], kept["has_ended"]

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file, atomically."""
        self.state = state
        if self._path is not None:
            kept = {
                "version": _VERSION,
                "settings": self._settings,
                "state": state,
                "has_ended": self.has_ended,
            }
            write_checkpoint(self._path, kept)

    def _check(self, kept: dict[str, Any]) -> None:
        name = os.fspath(self._path) if self._path is not None else ""
        if kept.get("version") != _VERSION or not {"settings", "state"} <= kept.keys():
            raise OptimizerStateError(
                f"checkpoint {name!r} was not written by this version of PrivateSearch:"
                " name another file, or remove it to begin anew."
            )
        if different := _differences(kept["settings"], self._settings):
            raise OptimizerStateError(
                f"checkpoint {name!r} belongs to a search with other settings: "
                f"{different}. Use the same settings, or another file for a "
                "new search. What was spent stays in the ledger."
            )


def end_checkpoint(path: str | os.PathLike[str] | None) -> None:
    """Note in a checkpoint that its search will not go on from there."""
    if path is not None and os.path.exists(path):
        kept = read_checkpoint(path, torch.device("cpu"))
        write_checkpoint(path, {**kept, "has_ended": True})


def settings_of(params: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """Return the settings that two fits of one search must share, as plain values.

    Args:
        params: The arguments of the search, as ``get_params(deep=False)`` returns them.
        **facts: Further public facts, which may replace arguments.
    """
    used = {name: value for name, value in params.items() if name not in _FREE}
    return {name: _described(value) for name, value in {**used, **facts}.items()}


def check_same_settings(
    of_fit: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> None:
    """Raise if a search that was stopped would go on with other settings.

    Args:
        of_fit: The settings it was planned with; None if it begins now.
        now: The present ones.
    """
    if of_fit is not None and (different := _differences(of_fit, now)):
        raise OptimizerStateError(
            f"resume continues the search of fit, whose settings were others: "
            f"{different}. Set them back, or give a guarantee for a new search."
        )


def ledger_of(
    ledger: Ledger | None, checkpoint: str | os.PathLike[str] | None, cap: Any
) -> Ledger:
    """Return the ledger to charge: the given one, or a new one with this cap.

    Beside a checkpoint there is a file, ``<checkpoint>.ledger``, which outlives the
    process.
    """
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise InvalidArgumentError(
            f"checkpoint must be a file name or None, got {checkpoint!r}."
        )
    if ledger is None:
        if checkpoint is None:
            return Ledger(cap=cap)
        return Ledger(f"{os.fspath(checkpoint)}.ledger", cap=cap)
    if not isinstance(ledger, Ledger):
        raise InvalidArgumentError(
            f"ledger must be a botorch_dp.Ledger or None, got {ledger!r}."
        )
    if checkpoint is not None and ledger.path is None:
        raise InvalidArgumentError(
            "checkpoint needs a ledger that outlives the process, got one in memory: "
            "give ledger=Ledger(path, cap=...), or leave it out, and it is kept in "
            f"{os.fspath(checkpoint)!r} + '.ledger'."
        )
    return ledger


def _described(value: Any) -> str:
    """Return a setting as text, without addresses, which differ between processes."""
    if isinstance(value, BaseEstimator):
        return _ADDRESS.sub("", value.__repr__(N_CHAR_MAX=10**9))
    if isinstance(value, Mapping):
        return repr({name: _described(part) for name, part in value.items()})
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", repr(value))


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{key}={_short(theirs.get(key))} there, {_short(ours.get(key))} here"
        for key in dict.fromkeys([*ours, *theirs])
        if theirs.get(key) != ours.get(key)
    )


def _short(text: Any) -> str:
    shown = str(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
