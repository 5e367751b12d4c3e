"""Folders and files that only their owner can read, and a lock on a folder."""

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

from botorch_dp.exceptions import OptimizerStateError

UMASK = 0o077


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder that only its owner can enter, or restrict an existing one."""
    path = Path(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; a crash leaves the old one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(temporary, path)


class FolderLock:
    """Reserves a folder for one server, until it is released or the process ends."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        folder = Path(folder)
        self._file: IO[str] = (folder / "lock").open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise OptimizerStateError(
                f"output {str(folder.parent)!r} is in use by another server: wait "
                "until its run is over or stop it, or name another folder."
            ) from None

    def release(self) -> None:
        """Release the folder."""
        self._file.close()
