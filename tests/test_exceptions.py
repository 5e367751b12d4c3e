"""Errors and warnings have one base class each, and fit into Python's own."""

import inspect

import pytest

from botorch_dp import exceptions
from botorch_dp.exceptions import (
    BotorchDPError,
    BotorchDPWarning,
    InvalidArgumentError,
    MissingExtraError,
)

CLASSES = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES)
def test_one_base(kind):
    is_warning = issubclass(kind, BotorchDPWarning)
    assert is_warning != issubclass(kind, BotorchDPError)
    assert kind.__name__.endswith("Warning" if is_warning else "Error")
    assert kind.__doc__


def test_as_pythons_own():
    """So that code that does not know this library can catch them."""
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(BotorchDPWarning, UserWarning)
