"""The mark of interfaces that may still change."""

import pytest

from botorch_dp._experimental import experimental
from botorch_dp.exceptions import BotorchDPWarning, ExperimentalWarning


@experimental("0.1.0")
def add(a, b):
    """Add two numbers."""
    return a + b


@experimental("0.2.0")
class Box:
    """Holds a value."""

    def __init__(self, value):
        self.value = value


def test_a_function_warns_at_its_caller():
    message = r"^add is experimental \(since 0\.1\.0\)"
    with pytest.warns(ExperimentalWarning, match=message) as caught:
        assert add(1, b=2) == 3
    assert caught[0].filename == __file__
    assert (add.__name__, add.__doc__) == ("add", "Add two numbers.")


def test_a_class_stays_a_class_and_warns_at_its_caller():
    with pytest.warns(ExperimentalWarning, match=r"^Box .*since 0\.2\.0") as caught:
        box = Box(3)
    assert isinstance(box, Box)
    assert box.value == 3
    assert caught[0].filename == __file__


def test_it_is_a_warning_of_the_library():
    assert issubclass(ExperimentalWarning, BotorchDPWarning)
