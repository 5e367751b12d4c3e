"""Limits of a search: when it stops, and that Ctrl-C waits for a paid release."""

import signal
import threading

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import stopping
from botorch_dp.integrations.sklearn.stopping import (
    Limits,
    SearchStopped,
    uninterrupted,
)


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(stopping, "now", lambda: self.now)


class TestLimits:
    def test_none(self):
        limits = Limits()
        limits.num_fits = 10**6
        limits.check(10**6)

    def test_clock(self, monkeypatch):
        clock = Clock(monkeypatch)
        limits = Limits(timeout=5.0)
        clock.now += 4.99
        limits.check(3)
        clock.now += 0.01
        for num_models in (0, 3):
            with pytest.raises(SearchStopped) as stopped:
                limits.check(num_models)
            assert stopped.value.reason == "timeout"

    def test_models(self):
        limits = Limits(max_fits=4)
        limits.check(4)
        limits.num_fits = 2
        limits.check(2)
        limits.check()
        with pytest.raises(SearchStopped) as stopped:
            limits.check(3)
        assert stopped.value.reason == "max_fits"

    def test_too_few_models_for_the_first_release(self):
        with pytest.raises(InvalidArgumentError, match=r"at least 5 here.*got 4"):
            Limits(max_fits=4).check(5)

    @pytest.mark.parametrize(
        "given", [{"timeout": 0}, {"timeout": "1"}, {"max_fits": 0}, {"max_fits": 1.5}]
    )
    def test_bad_ones(self, given):
        (name,) = given
        with pytest.raises(InvalidArgumentError, match=f"{name} must be"):
            Limits(**given)


class TestUninterrupted:
    @pytest.fixture(autouse=True)
    def _ctrl_c(self):
        """A job in the background of a shell may ignore Ctrl-C."""
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, previous)

    def test_waits(self):
        done = []
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                done.append("release")
            done.append("afterwards")
        assert done == ["release"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_an_error_does_not_hide_it(self):
        with pytest.raises(KeyboardInterrupt) as caught, uninterrupted():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            raise OSError("disk full")
        assert isinstance(caught.value.__context__, OSError)

    def test_without_a_signal(self):
        with uninterrupted():
            pass
        with pytest.raises(OSError, match="disk full"), uninterrupted():
            raise OSError("disk full")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_ignored_signals_stay_ignored(self):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGINT, before)

    def test_in_another_thread(self):
        done = []

        def work():
            with uninterrupted():
                done.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert done == [signal.default_int_handler]
