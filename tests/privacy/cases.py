"""Events, histories and processes that several tests use."""

import contextlib
import itertools
import math
import multiprocessing
import os
import signal
import time

from scipy.integrate import quad

from botorch_dp import Ledger, PrivacyAccountant, PureDP
from botorch_dp.exceptions import BudgetExceededError
from botorch_dp.privacy import (
    ApproxEvent,
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    PureEvent,
    SelectionEvent,
    TruncatedNegativeBinomial,
    ZCDPEvent,
)

EVENTS = [
    GaussianEvent(2.0),
    ZCDPEvent(0.05),
    LaplaceEvent(3.0),
    PureEvent(0.2),
    ExponentialEvent(0.3),
    PermuteAndFlipEvent(0.3),
    ApproxEvent(0.1, 1e-7),
    PoissonGaussianEvent(1.5, 0.1),
    FixedSizeGaussianEvent(2.0, 10, 100),
    SelectionEvent(GaussianEvent(5.0), TruncatedNegativeBinomial(3.0, 1.0)),
]


def account(*events):
    accountant = PrivacyAccountant()
    for event, count in events:
        accountant.compose(event, count)
    return accountant


def renyi(upper, lower, order, points):
    """Renyi divergence of two densities by integration."""
    moment = sum(
        quad(
            lambda x: lower(x) * (upper(x) / lower(x)) ** order,
            low,
            high,
            epsabs=0,
            epsrel=1e-10,
            limit=500,
        )[0]
        for low, high in itertools.pairwise(points)
    )
    return math.log(moment) / (order - 1)


def closed_form_conversion(order, divergence, delta):
    """Canonne, Kamath and Steinke, Proposition 12."""
    return max(
        0.0,
        divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1),
    )


FORK = multiprocessing.get_context("fork")


def charge_until_refused(ledger, results, times, before=lambda: None):
    """Charge, then report how many charges went through."""
    done = 0
    with contextlib.suppress(BudgetExceededError):
        for _ in range(times):
            before()
            ledger.charge(PureEvent(0.01))
            done += 1
    results.put(done)


def kill_while_drawing(target, args, drawn_path, until, wait):
    """Kill a process some time after so many draws, and return how many there were.

    The process adds a byte to a file after every draw.
    """
    process = FORK.Process(target=target, args=args)
    process.start()
    give_up = time.monotonic() + 60
    while drawn_path.stat().st_size < until and time.monotonic() < give_up:
        time.sleep(1e-4)
    time.sleep(wait)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    drawn = drawn_path.stat().st_size
    assert drawn >= until
    return drawn


def race(path, barrier, results):
    ledger = Ledger(path, cap=PureDP(1.0))
    barrier.wait()
    charge_until_refused(ledger, results, times=50)
