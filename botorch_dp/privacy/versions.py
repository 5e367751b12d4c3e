"""The versions of the libraries that a certificate depends on."""

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("botorch-dp", "torch", "dp-accounting", "opendp")


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of each of the libraries that is installed."""
    versions = {"python": platform.python_version()}
    found = {package: _version_of(package) for package in _PACKAGES}
    return versions | {name: text for name, text in found.items() if text is not None}


@functools.cache
def _version_of(package: str) -> str | None:
    """Return the version of an installed package, from its files."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
