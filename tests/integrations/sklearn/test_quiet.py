"""Nothing is heard of what happens in silence, and everything is restored."""

import ctypes
import logging
import os
import sys
import warnings

import pytest
import sklearn

from botorch_dp.integrations.sklearn.quiet import Surroundings, quiet

LIBC = ctypes.CDLL(None)  # prints as compiled code does


def shout():
    warnings.warn("a private record", stacklevel=2)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a private record", stacklevel=2)
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        print("a private record", file=stream)
    os.write(1, b"a private record")
    LIBC.puts(b"a private record")
    logging.getLogger(__name__).log(60, "a private record")


class TestQuiet:
    def test_nothing_is_heard(self, capfd, caplog):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with quiet():
                shout()
        LIBC.fflush(None)
        assert caught == []
        assert capfd.readouterr() == ("", "")
        assert caplog.records == []

    def test_what_was_printed_before_and_after_is_there(self, capfd):
        print("before")
        LIBC.puts(b"before, in C")
        with quiet(), quiet():  # it may be nested
            shout()
        LIBC.fflush(None)
        print("after")
        out, err = capfd.readouterr()
        assert sorted(out.split("\n")) == ["", "after", "before", "before, in C"]
        assert err == ""

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_everything_is_restored(self, error):
        def state():
            manager = logging.root.manager.disable
            return sys.stdout, sys.stderr, list(warnings.filters), manager

        before = state()
        with pytest.raises(error), quiet():
            raise error
        assert state() == before

    def test_a_closed_stream(self, capfd):
        """As of a service that has no standard output."""
        saved = os.dup(1)
        os.close(1)
        try:
            with quiet():
                print("a private record", file=sys.stderr)
        finally:
            os.dup2(saved, 1)
            os.close(saved)
        assert capfd.readouterr().err == ""


class TestSurroundings:
    def test_settings_of_the_caller(self):
        with warnings.catch_warnings(), sklearn.config_context(assume_finite=True):
            warnings.simplefilter("error", category=RuntimeWarning)
            theirs = Surroundings()
        assert not sklearn.get_config()["assume_finite"]
        with theirs.entered():
            assert sklearn.get_config()["assume_finite"]
            with pytest.raises(RuntimeWarning):
                warnings.warn("overflow", RuntimeWarning, stacklevel=2)
        assert not sklearn.get_config()["assume_finite"]
