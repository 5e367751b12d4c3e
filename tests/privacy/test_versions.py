"""Certificates state versions without importing the libraries."""

import platform

import torch

from botorch_dp.privacy.versions import _version_of, installed_versions


def test_what_is_installed():
    versions = installed_versions()
    assert versions["python"] == platform.python_version()
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert _version_of("no-such-package") is None
