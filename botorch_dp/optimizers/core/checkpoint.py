"""Checkpoints: public state in a file that is replaced atomically."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from botorch_dp.exceptions import OptimizerStateError


def write_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write the state so that a crash at any moment leaves a complete file.

    The state is written to a temporary file next to ``path`` and flushed to the disk.
    The temporary file then replaces ``path`` atomically.
    """
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_checkpoint(
    path: str | os.PathLike[str], device: torch.device
) -> dict[str, Any]:
    """Return the state in a checkpoint, its tensors on ``device``."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        # Do not repeat torch's message: it recommends loading the file unsafely.
        raise OptimizerStateError(
            f"checkpoint {os.fspath(path)!r} cannot be read ({type(error).__name__}): "
            "it is damaged, or was not written by this library. Name another file, or "
            "remove it to begin anew."
        ) from None
    if not isinstance(state, dict):
        raise OptimizerStateError(
            f"checkpoint {os.fspath(path)!r} holds no state: name another file, or "
            "remove it to begin anew."
        )
    return state
