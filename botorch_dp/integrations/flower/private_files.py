"""Folders and files that nobody else may read, and one server at a time in a folder."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from botorch_dp.exceptions import OptimizerStateError

UMASK = 0o077


@contextmanager
def private_umask() -> Iterator[None]:
    """Let only the owner read what this process writes meanwhile."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder that only its owner can enter, or close an existing one."""
    path = Path(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read: the old one or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(temporary, path)


class FolderLock:
    """Keeps a folder for one process, until it is released or the process ends.

    Args:
        folder: The folder, which exists.

    Raises:
        OptimizerStateError: If another process, or another server in this one, has it.
    """

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
        """Let others have the folder."""
        self._file.close()
