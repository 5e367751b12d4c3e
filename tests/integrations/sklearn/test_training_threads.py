"""Threads train short fits; they never do so while private records are scored."""

import threading
import time
import warnings

import joblib
import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from tqdm import tqdm

from botorch_dp.integrations.sklearn import evaluation, training_threads
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.record_losses import Scoring
from botorch_dp.integrations.sklearn.records import read_alike
from botorch_dp.integrations.sklearn.training_threads import (
    in_threads,
    is_serial,
    may_use_threads,
    trains_fast,
)

TRAIN = np.arange(10.0).reshape(-1, 1), np.arange(10) % 2
PRIVATE = np.arange(30.0).reshape(-1, 1), np.arange(30) % 2
CANDIDATES = [{"shift": float(i)} for i in range(6)]
pytestmark = pytest.mark.cpu_only  # models of scikit-learn are scored on the CPU


class Diary:
    """Notes who trains and scores, and when."""

    training, together, threads = 0, False, set()

    @classmethod
    def begin(cls):
        cls.training, cls.together, cls.threads = 0, False, set()


class Noted(ClassifierMixin, BaseEstimator):
    """A classifier that writes the diary."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def fit(self, X, y):
        Diary.training += 1
        Diary.threads.add(threading.current_thread().name)
        time.sleep(0.005)
        self.classes_ = np.unique(y)
        Diary.training -= 1
        return self


def loss(model, X, y):
    Diary.together |= Diary.training > 0
    return np.abs(np.asarray(y, dtype=float) - model.shift)


def make(n_jobs, **settings):
    Diary.begin()
    return Evaluation(
        estimator=Noted(),
        scoring=Scoring("loss", loss, (0.0, 10.0)),
        training=(*TRAIN, {}),
        private=read_alike(*PRIVATE, training=TRAIN),
        n_jobs=n_jobs,
        bar=tqdm(disable=True),
        **settings,
    )


def no_processes(*args):
    raise AssertionError("processes")


def test_short_fits(monkeypatch):
    serial = make(1).losses(CANDIDATES)
    evaluated = make(2)
    monkeypatch.setattr(evaluated, "_in_processes", no_processes)
    monkeypatch.setattr(training_threads, "_FAST", 60.0)
    assert (evaluated.losses(CANDIDATES) == serial).all()
    assert len(Diary.threads) > 1
    assert not Diary.together
    assert evaluated.num_fits == 6
    assert len(evaluated.checked) == 1
    first = evaluated.seconds_per_fit
    evaluated.losses(CANDIDATES[:2])
    assert evaluated.seconds_per_fit == first  # it decides once


def test_long_fits(monkeypatch):
    monkeypatch.setattr(training_threads, "_FAST", 0.0)
    evaluated, sent = make(2), []

    def send(candidates):
        sent.extend(candidates)
        yield from (np.zeros(30) for _ in candidates)

    monkeypatch.setattr(evaluated, "_in_processes", send)
    assert evaluated.losses(CANDIDATES).shape == (30, 6)
    assert sent == CANDIDATES[1:]  # the first one was timed


def test_training_times_at_private_points_decide_nothing(monkeypatch):
    evaluated = make(2, points_are_private=True)
    monkeypatch.setattr(evaluation, "in_threads", no_processes)
    with joblib.parallel_config(n_jobs=1):
        evaluated.n_jobs = None
        evaluated.losses(CANDIDATES[:1])
    monkeypatch.setattr(evaluated, "_in_processes", lambda c: (np.zeros(30) for _ in c))
    evaluated.n_jobs = 2
    evaluated.losses(CANDIDATES)
    assert evaluated.seconds_per_fit is None


def test_the_callers_choice_of_a_backend_comes_first():
    assert may_use_threads(2)
    assert not may_use_threads(1)
    assert not may_use_threads(None)
    with joblib.parallel_config(n_jobs=2):
        assert may_use_threads(None)
    for backend, is_shared in {"loky": False, "threading": True}.items():
        with joblib.parallel_config(backend=backend):
            assert may_use_threads(2) == is_shared


def test_how_long_is_short():
    assert trains_fast(0.001)
    assert not trains_fast(10.0)
    assert not trains_fast(None)


def test_configuration_and_filters_of_the_caller():
    before = list(warnings.filters)

    def fit(params):
        warnings.simplefilter("always")
        return sklearn.get_config()["assume_finite"], params

    with sklearn.config_context(assume_finite=True):
        assert in_threads(fit, [1, 2]) == [(True, 1), (True, 2)]
    assert warnings.filters == before


def test_errors_are_those_of_the_models():
    def fit(params):
        raise FloatingPointError(f"diverged at {params}")

    with pytest.raises(FloatingPointError, match="diverged"):
        in_threads(fit, [1, 2])


def test_one_job_needs_no_joblib():
    assert is_serial(None)
    assert is_serial(1)
    assert not is_serial(2)
    with joblib.parallel_config("threading", n_jobs=2):
        assert not is_serial(None)
        assert is_serial(1)


def test_other_backends_run_even_one_job():
    class Elsewhere(joblib.parallel.SequentialBackend):
        pass

    with joblib.parallel_config(Elsewhere()):
        assert not is_serial(1)
