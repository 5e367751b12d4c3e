"""What a private search takes for each model, beside training and predicting.

The times are CPU times of one thread, so that other processes do not count. Each is
divided by the number of models that were trained.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from sklearn.model_selection import PredefinedSplit, RandomizedSearchCV
from sklearn.naive_bayes import GaussianNB

from benchmarks._common import Row
from botorch_dp import ApproxDP
from botorch_dp.integrations.sklearn import PrivateSearch, Real
from botorch_dp.integrations.sklearn.metrics import log_losses

NUM_TRAIN = 500
NUM_FITS = 32
SPACE = {"var_smoothing": Real(1e-9, 1.0, log=True)}
GUARANTEE = ApproxDP(1.0, 1e-6)
ALONE = "the fits alone, scored by log_loss"
BY_RECORD = "the fits alone, with one loss for each record"
RANDOMIZED = "RandomizedSearchCV, NOT private"


def calls(num_private: int) -> dict[str, Callable[[], int]]:
    """Searches, and fits alone; each returns the number of models it trained."""
    X, y = make_classification(NUM_TRAIN + num_private, random_state=0)
    train, private = (X[:NUM_TRAIN], y[:NUM_TRAIN]), (X[NUM_TRAIN:], y[NUM_TRAIN:])
    values = np.exp(np.random.default_rng(0).uniform(np.log(1e-9), 0, NUM_FITS))
    fold = np.repeat([-1, 0], [NUM_TRAIN, num_private])

    def fitted(value: float) -> GaussianNB:
        return clone(GaussianNB()).set_params(var_smoothing=value).fit(*train)

    def alone() -> int:
        for value in values:
            log_loss(private[1], fitted(value).predict_proba(private[0]))
        return NUM_FITS

    def by_record() -> int:
        for value in values:
            log_losses(fitted(value), *private)
        return NUM_FITS

    def randomized() -> int:
        RandomizedSearchCV(
            GaussianNB(),
            {"var_smoothing": values},
            n_iter=NUM_FITS,
            scoring="neg_log_loss",
            cv=PredefinedSplit(fold),
            refit=False,
            random_state=0,
        ).fit(X, y)
        return NUM_FITS

    def private_search(method: str) -> Callable[[], int]:
        settings: dict[str, Any] = {"max_evaluations": NUM_FITS}
        if method == "stable":
            settings = {"num_candidates": NUM_FITS}

        def run() -> int:
            warnings.simplefilter("ignore")
            search = PrivateSearch(
                GaussianNB(),
                SPACE,
                GUARANTEE,
                method=method,
                scoring="neg_log_loss",
                refit=False,
                verbose=0,
                **settings,
            ).fit(*train, X_val=private[0], y_val=private[1])
            return int(search.num_fits_)

        return run

    methods = {f"PrivateSearch, {m}": private_search(m) for m in ("stable", "dp-gibo")}
    return {ALONE: alone, BY_RECORD: by_record, RANDOMIZED: randomized, **methods}


def _cpu_times(calls: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds for each model, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            num_fits = call()
            taken = (time.process_time() - start) / num_fits
            times[name] += [taken] if number else []  # warm
    return {name: statistics.median(taken) for name, taken in times.items()}


def rows(rounds: int = 3) -> list[Row]:
    """A row for each search, with milliseconds for each model."""
    found: dict[str, Row] = {}
    for num_private in (2_000, 20_000):
        times = _cpu_times(calls(num_private), rounds)
        reference = times[RANDOMIZED] - times[ALONE]
        for name, seconds in times.items():
            row = found.setdefault(name, {"search": name})
            row[f"CPU ms a model, {num_private:,} records"] = f"{1e3 * seconds:.2f}"
            own = ALONE if name in (ALONE, RANDOMIZED) else BY_RECORD
            for begin, less in (("overhead", ALONE), ("beyond its own scoring", own)):
                overhead = (seconds - times[less]) / reference
                heading = f"{begin} / that of RandomizedSearchCV, {num_private:,}"
                row[heading] = f"{overhead:.2f}"
    return list(found.values())
