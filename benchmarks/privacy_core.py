"""Costs and savings of the privacy core, as ratios measured in one run.

Writes ``benchmarks/results/privacy_core.json`` and the table made from it. Run it with
``make benchmarks``.
"""

import itertools
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

import dp_accounting
import numpy as np
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import IAccountant, PRVAccountant
from scipy.optimize import brentq

from benchmarks._common import report, seconds
from botorch_dp import (
    GDP,
    ApproxDP,
    Certificate,
    ExponentialMechanism,
    GaussianMechanism,
    Ledger,
    PrivacyAccountant,
    PureDP,
)
from botorch_dp.privacy import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    PaidReleases,
    PoissonGaussianEvent,
    PrivacyEvent,
    SecureNoise,
    SeededNoise,
    SystemNoise,
    ZCDPEvent,
    classical_gaussian_noise_std,
    clip_rows,
    gaussian_noise_std,
    loss_pairs,
)
from botorch_dp.privacy.filters import FILTERS, make_filter, suitable_filter
from botorch_dp.privacy.history import total_losses

DELTA = 1e-5
# The federated paper's privacy losses (T = 40, N = 200, delta = N^-1.1), published.
PUBLISHED = {(0.15, 1.0): 5.93, (0.25, 1.0): 9.91, (0.5, 1.0): 20.12}


def accounting() -> list[dict[str, object]]:
    """1,000 different Gaussian releases, by three accountants."""
    multipliers = np.linspace(5.0, 50.0, 1000)

    def ours() -> float:
        accountant = PrivacyAccountant()
        for multiplier in multipliers:
            accountant.compose(GaussianEvent(multiplier))
        return accountant.get_epsilon(DELTA)

    def library(accountant: PLDAccountant | RdpAccountant) -> float:
        for multiplier in multipliers:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        return accountant.get_epsilon(DELTA)

    calls = {
        "exact Gaussian composition": (ours, 5),
        "RDP (dp-accounting)": (lambda: library(RdpAccountant()), 3),
        "PLD (dp-accounting)": (lambda: library(PLDAccountant()), 1),
    }
    rows = [
        {"what": name, "seconds": seconds(call, n), "epsilon": call()}
        for name, (call, n) in calls.items()
    ]
    for row in rows:
        row["times ours"] = row["seconds"] / rows[0]["seconds"]
    return rows


def different() -> list[dict[str, object]]:
    """Different Poisson-sampled Gaussian releases, by four accountants.

    dp-accounting's privacy loss distributions have a grid of 1e-3, since their time is
    inversely proportional to it, and are left out where they would take minutes.
    """
    rows: list[dict[str, object]] = []
    for number in (20, 64, 100, 1000):
        steps = [
            (float(z), float(q), 1)
            for z, q in zip(
                np.linspace(0.9, 1.5, number),
                np.linspace(0.005, 0.02, number),
                strict=True,
            )
        ]
        calls = {
            "ours": lambda s=steps: _epsilon_of(PrivacyAccountant(), s),
            "PRV (Opacus)": lambda s=steps: _epsilon_of(PRVAccountant(), s),
            "RDP (dp-accounting)": lambda s=steps: _library_epsilon(RdpAccountant(), s),
        }
        if number <= 64:
            calls["PLD (dp-accounting)"] = lambda s=steps: _library_epsilon(
                PLDAccountant(value_discretization_interval=1e-3), s
            )
        row: dict[str, object] = {"different releases": number}
        for name, call in calls.items():
            start = time.process_time()
            epsilon = call()
            row[f"{name}: seconds"] = time.process_time() - start
            row[f"{name}: epsilon"] = epsilon
        rows.append(row)
    return rows


def _epsilon_of(
    accountant: IAccountant, steps: list[tuple[float, float, int]]
) -> float:
    accountant.history = list(steps)
    loss_pairs._many_poisson_pairs.cache_clear()
    loss_pairs._few_poisson_pairs.cache_clear()
    total_losses.cache_clear()
    return accountant.get_epsilon(DELTA)


def _library_epsilon(
    accountant: PLDAccountant | RdpAccountant, steps: list[tuple[float, float, int]]
) -> float:
    for noise, rate, count in steps:
        gaussian = dp_accounting.GaussianDpEvent(noise)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), count)
    return accountant.get_epsilon(DELTA)


def sampled() -> list[dict[str, object]]:
    """The federated paper's budgets, published and exact."""
    rows = []
    for (rate, multiplier), published in PUBLISHED.items():
        accountant = PrivacyAccountant()
        accountant.compose(PoissonGaussianEvent(multiplier, rate), 40)
        spent = accountant.spent(200**-1.1)
        rows.append(
            {
                "what": f"q={rate}, z={multiplier}, T=40",
                "published epsilon": published,
                "epsilon": spent.amount,
                "by": spent.method,
            }
        )
    return rows


def noise() -> list[dict[str, object]]:
    """The cost of a noise source, by how many numbers are drawn."""
    sources = {
        "seeded torch generator": SeededNoise(torch.Generator().manual_seed(0)),
        "operating system entropy": SystemNoise(),
        "secure, finest grid": SecureNoise(),
        "secure, grid 2^-20": SecureNoise(-20),
    }
    rows = []
    for name, source in sources.items():
        row: dict[str, object] = {"what": name}
        for size in (5, 400, 100_000):
            if size == 100_000 and isinstance(source, SecureNoise):
                continue
            value = torch.zeros(size, dtype=torch.float64)
            source.add_gaussian(value, 1.0)
            row[f"ms, {size} numbers"] = 1e3 * seconds(
                lambda v=value, s=source: s.add_gaussian(v, 1.0)
            )
        rows.append(row)
    return rows


def calibration() -> list[dict[str, object]]:
    """Noise of the classical calibration over the exact, and its true epsilon."""
    rows = []
    for epsilon, delta in ((1.0, 0.2), (2.0, 0.2), (1.0, 1e-5), (10.0, 1e-5)):
        guarantee = ApproxDP(epsilon, delta)
        exact = gaussian_noise_std(guarantee, sensitivity=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            classical = classical_gaussian_noise_std(guarantee, sensitivity=1.0)
        rows.append(
            {
                "what": f"epsilon={epsilon:g}, delta={delta:g}",
                "exact noise": exact,
                "classical noise": classical,
                "ratio": classical / exact,
                "classical epsilon": GDP(1 / classical).epsilon(delta),
            }
        )
    return rows


def throughput() -> list[dict[str, object]]:
    """Clipping a million records, and choosing among a million candidates."""
    rows = torch.randn(1_000_000, 10, dtype=torch.float64)
    scores = torch.rand(1_000_000, dtype=torch.float64)
    choose = ExponentialMechanism(PureDP(1.0), sensitivity=1e-3)
    accountant = PrivacyAccountant()
    plain = seconds(lambda: rows * (1.0 / rows.norm(dim=-1, keepdim=True)).clamp(max=1))
    safe = seconds(lambda: clip_rows(rows, 1.0))
    chosen = seconds(lambda: choose.release(scores, ledger=accountant))
    argmax = seconds(lambda: scores.argmax())
    return [
        {"what": "clip 10^6 x 10, unsafe", "seconds": plain, "ratio": 1.0},
        {"what": "clip 10^6 x 10, ours", "seconds": safe, "ratio": safe / plain},
        {"what": "argmax of 10^6", "seconds": argmax, "ratio": 1.0},
        {"what": "exponential, 10^6", "seconds": chosen, "ratio": chosen / argmax},
    ]


def filters() -> list[dict[str, object]]:
    """Filters: what a cap counts when releases are chosen adaptively.

    The history is filled up until exact accounting reaches the cap. "Counted" is what a
    filter makes of it; a plan that is reserved beforehand counts exactly. The
    weights of the Renyi filter were chosen at other caps and histories.
    """
    histories = {
        "Gaussian": lambda s: [(GaussianEvent(1 / s), 10)],
        "Gaussian and exponential": lambda s: [
            (GaussianEvent(1 / s), 10),
            (ExponentialEvent(s), 1),
        ],
        "60 Laplace": lambda s: [(LaplaceEvent(1 / s), 60)],
        "discrete Gaussian": lambda s: [(ZCDPEvent(s**2 / 2), 25)],
        "federation: 40 rounds, q = 0.25": lambda s: [
            (PoissonGaussianEvent(1 / s, 0.25), 40)
        ],
        "training: 2,000 steps, q = 0.004": lambda s: [
            (PoissonGaussianEvent(1 / s, 0.004), 2000)
        ],
    }
    rows: list[dict[str, object]] = []
    for cap in (ApproxDP(0.5, 1e-6), ApproxDP(2.0, 1e-6), ApproxDP(5.0, 1e-5)):
        for name, history in histories.items():
            releases = history(_largest_strength(history, cap))
            row: dict[str, object] = {"cap": repr(cap), "history": name}
            for kind in FILTERS:
                counter = make_filter(cap, kind)
                counted = counter.spent(counter.total(releases)).amount
                row[f"counted by {kind}, times exact"] = counted / cap.epsilon
            row["default"] = suitable_filter(releases)
            rows.append(row)
    return rows


def _largest_strength(
    history: Callable[[float], list[tuple[PrivacyEvent, int]]], cap: ApproxDP
) -> float:
    """The strength at which exact accounting of a history reaches the cap."""

    def excess(log_strength: float) -> float:
        accountant = PrivacyAccountant()
        for event, count in history(math.exp(log_strength)):
            accountant.compose(event, count)
        return accountant.get_epsilon(cap.delta) - cap.epsilon

    return math.exp(brentq(excess, math.log(1e-3), math.log(3.0), xtol=1e-4))


def ledger() -> list[dict[str, object]]:
    """Charges a second to a ledger in a file, after so many different ones before.

    A file in memory does not wait for a disk: what is left is our own time.
    """
    rows: list[dict[str, object]] = []
    for place, folder in _places().items():
        with tempfile.TemporaryDirectory(dir=folder) as name:
            book = Ledger(f"{name}/ledger.sqlite", cap=ApproxDP(50.0, 1e-5))
            events = (GaussianEvent(1e4 + number) for number in itertools.count())
            for before in (10, 1_000, 10_000):
                missing = before - len(book)
                book.charge_many([(next(events), 1) for _ in range(missing)])
                rows.append(
                    {
                        "file": place,
                        "different charges before": before,
                        **_charges_a_second(book, events),
                    }
                )
    return rows


def _charges_a_second(
    book: Ledger, events: Iterator[GaussianEvent]
) -> dict[str, object]:
    """How many charges and releases a ledger takes in a second, by how they come."""
    one_by_one = 1 / seconds(lambda: book.charge(next(events)), 50)

    def batch(size: int) -> float:
        releases = [(next(events), 1) for _ in range(size)]
        return size / seconds(lambda: book.charge_many(releases), 5)

    mechanism = GaussianMechanism(GDP(1e-4), sensitivity=1.0)
    value = torch.zeros(1, dtype=torch.float64)

    def release() -> None:
        paid = PaidReleases(book, mechanism, num_releases=1_000)
        for _ in range(1_000):
            mechanism.release(value, ledger=paid)

    return {
        "one by one": one_by_one,
        "in batches of 10": batch(10),
        "in batches of 100": batch(100),
        "in batches of 1,000": batch(1_000),
        "releases, 1,000 paid ahead": 1_000 / seconds(release, 3),
    }


def opening() -> list[dict[str, object]]:
    """Seconds to open a ledger of so many charges, and to use it."""
    rows: list[dict[str, object]] = []
    for what in ("all the same", "all different"):
        for size in (1_000, 10_000, 100_000):
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/ledger.sqlite"
                step = 1 if what == "all different" else 0
                events = [GaussianEvent(1e4 + step * number) for number in range(size)]
                book = Ledger(path, cap=ApproxDP(50.0, 1e-5))
                book.charge(events[0])
                book.charge_many([(event, 1) for event in events[1:]])
                rows.append(
                    {
                        "charges": what,
                        "number": size,
                        "open": seconds(lambda path=path: Ledger(path), 3),
                        "entries": seconds(lambda book=book: book.entries, 3),
                        "epsilon": seconds(lambda book=book: book.spent(), 1),
                        "certificate": seconds(
                            lambda book=book: Certificate.from_ledger(book), 1
                        ),
                    }
                )
    return rows


def _places() -> dict[str, str | None]:
    """The folders of ledgers: the default one, and one that no disk holds."""
    places: dict[str, str | None] = {"on disk (temporary folder)": None}
    if os.path.isdir("/dev/shm"):
        places["in memory (/dev/shm)"] = "/dev/shm"
    return places


SECTIONS = (
    accounting,
    different,
    sampled,
    noise,
    calibration,
    throughput,
    filters,
    ledger,
    opening,
)


def main() -> None:
    torch.set_num_threads(1)
    report("privacy_core", "The privacy core, measured", SECTIONS, only=sys.argv[1:])


if __name__ == "__main__":
    main()
