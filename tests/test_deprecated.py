"""Modules and names of earlier versions work for one release, and warn."""

import importlib
import sys

import pytest

import botorch_dp
from botorch_dp._deprecated import (
    MOVED,
    install,
    renamed_argument,
    renamed_attribute,
    renamed_names,
    warn_deprecated,
)

# Elsewhere in the suite they are errors.
pytestmark = pytest.mark.filterwarnings("always:botorch_dp.* is deprecated")


@pytest.fixture
def forgotten():
    """Let modules of earlier versions be imported as if for the first time."""

    def forget():
        for name in MOVED:
            sys.modules.pop(f"botorch_dp.{name}", None)

    forget()
    yield
    forget()


@pytest.mark.parametrize("old", MOVED)
def test_a_moved_module_is_found_and_warns(old, forgotten):
    if "flower" in MOVED[old]:
        pytest.importorskip("flwr")
    match = f"botorch_dp.{old} is deprecated .* use botorch_dp.{MOVED[old]}."
    with pytest.warns(DeprecationWarning, match=match):
        module = importlib.import_module(f"botorch_dp.{old}")
    real = importlib.import_module(f"botorch_dp.{MOVED[old]}")
    assert real.__name__ == real.__spec__.name == f"botorch_dp.{MOVED[old]}"
    names = [name for name in vars(real) if not name.startswith("_")]
    assert all(getattr(module, name) is getattr(real, name) for name in names)


def test_the_warning_points_at_the_import(forgotten):
    with pytest.warns(DeprecationWarning, match="dp_gibo is deprecated") as caught:
        from botorch_dp.optimizers.dp_gibo import DPGIBO
    assert DPGIBO is botorch_dp.DPGIBO
    assert __file__ in [one.filename for one in caught]


def test_no_module_is_where_another_was():
    for old in MOVED:
        assert importlib.util.find_spec(f"botorch_dp.{old}").origin is None


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("botorch_dp.optimizers.never")


def test_installed_once():
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_a_renamed_name():
    with pytest.warns(DeprecationWarning, match="old is deprecated .* use new") as w:
        warn_deprecated("old", "new", stacklevel=1)
    assert w[0].filename == __file__


class TestRenamed:
    def test_names_of_a_module(self):
        get = renamed_names("botorch_dp.exceptions", {"Old": "MessageError"})
        with pytest.warns(DeprecationWarning, match="Old is deprecated .*MessageErr"):
            assert get("Old") is botorch_dp.exceptions.MessageError
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            get("nothing")

    def test_arguments(self):
        @renamed_argument("old", "new")
        def double(x, *, new=0):
            """Return a sum."""
            return x + new

        assert (double(1), double(1, new=2), double.__doc__) == (1, 3, "Return a sum.")
        with pytest.warns(DeprecationWarning, match="old= .* use new=") as caught:
            assert double(1, old=3) == 4
        assert caught[0].filename == __file__
        with pytest.raises(TypeError, match="deprecated name of new"):
            double(1, old=3, new=4)

    def test_attributes(self):
        class Thing:
            old = renamed_attribute("old", "new")
            new = 1

        thing = Thing()
        with pytest.warns(DeprecationWarning, match=r"Thing\.old .* use new") as caught:
            assert thing.old == 1
        with pytest.warns(DeprecationWarning, match=r"Thing\.old .* use new"):
            thing.old = 2
        assert thing.new == 2
        assert caught[0].filename == __file__
