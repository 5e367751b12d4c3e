"""Candidates are fitted on training records and scored on private ones."""

import io
import sys
import types
import warnings

import joblib
import numpy as np
import pytest
import torch
from joblib.parallel import SequentialBackend
from sklearn.base import BaseEstimator, RegressorMixin
from tqdm import tqdm

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import stopping, training_threads
from botorch_dp.integrations.sklearn.evaluation import Evaluation, progress_bar
from botorch_dp.integrations.sklearn.metrics import squared_errors
from botorch_dp.integrations.sklearn.record_losses import Scoring
from botorch_dp.integrations.sklearn.records import read_alike
from botorch_dp.integrations.sklearn.stopping import Limits, SearchStopped

RNG = np.random.default_rng(0)
TRAIN = (RNG.normal(size=(10, 1)), RNG.normal(size=10))
PRIVATE = (np.zeros((30, 1)), RNG.uniform(size=30))


class Shifted(RegressorMixin, BaseEstimator):
    """Predicts the mean of its training targets and a shift."""

    def __init__(self, shift=0.0, times=1):
        self.shift, self.times = shift, times

    def fit(self, X, y):
        if self.shift > 5:
            raise FloatingPointError(f"diverged at {self.shift}")
        if self.shift > 4:
            warnings.warn(f"slow at {self.shift}", stacklevel=2)
        self.mean_ = np.mean(y)
        y[:] = 0.0  # models may do that
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_ + self.times * self.shift)


def evaluation(loss=squared_errors, **settings):
    return Evaluation(
        estimator=Shifted(),
        scoring=Scoring("loss", loss, (0.0, 1e3)),
        training=(*TRAIN, {}),
        private=read_alike(*PRIVATE, training=TRAIN),
        n_jobs=None,
        bar=tqdm(disable=True),
        **settings,
    )


def exact(shift, times=1):
    return np.square(TRAIN[1].mean() + times * shift - PRIVATE[1])


def test_losses_of_candidates():
    mean, evaluated = TRAIN[1].mean(), evaluation()
    losses = evaluated.losses([{"shift": 0.5}, {"shift": -1.0, "times": 2}])
    assert losses.shape == (30, 2)
    assert losses[:, 0].numpy() == pytest.approx(exact(0.5))
    assert losses[:, 1].numpy() == pytest.approx(exact(-1.0, 2))
    assert evaluated.num_fits == 2
    assert TRAIN[1].mean() == mean  # a model may change its copy only


class AllAtOnce(SequentialBackend):
    """A backend that cannot return results one by one, as Ray's."""

    supports_return_generator = False


def test_a_backend_that_returns_all_losses_at_once():
    joblib.register_parallel_backend("all at once", AllAtOnce)
    candidates = [{"shift": 0.5}, {"shift": -1.0}, {"shift": 2.0}]
    evaluated = evaluation()
    with joblib.parallel_config(backend="all at once"):
        losses = evaluated.losses(candidates)
    assert torch.equal(losses, evaluation().losses(candidates))
    assert evaluated.num_fits == 3


def test_points_between_candidates():
    """A weighted mean of losses; a candidate that two points share is fitted once."""
    evaluated = evaluation()
    one, two = {"shift": 1.0, "times": 1}, {"shift": 1.0, "times": 2}
    losses = evaluated.interpolated([[(0.25, one), (0.75, two)], [(1.0, two)]])
    expected = 0.25 * exact(1.0) + 0.75 * exact(1.0, 2)
    assert losses[:, 0].numpy() == pytest.approx(expected)
    assert losses[:, 1].numpy() == pytest.approx(exact(1.0, 2))
    assert evaluated.num_fits == 2


def test_number_of_records():
    assert evaluation().num_records == 30


def test_models():
    model = evaluation().fitted({"shift": 0.5})
    assert model.shift == 0.5
    assert model.mean_ == TRAIN[1].mean()


class TestErrors:
    def test_public_points(self):
        with pytest.raises(FloatingPointError, match="diverged at 6"):
            evaluation().losses([{"shift": 6.0}])
        with pytest.warns(UserWarning, match=r"slow at 4\.5"):
            evaluation().losses([{"shift": 4.5}])

    @pytest.mark.filterwarnings("error")
    def test_private_points(self):
        """Where training fails is private: all records have the largest loss."""
        private = evaluation(points_are_private=True)
        losses = private.losses([{"shift": 6.0}, {"shift": 4.5}])
        assert torch.equal(losses[:, 0], torch.full_like(losses[:, 0], 1e3))
        assert losses[:, 1].numpy() == pytest.approx(exact(4.5))

    def test_a_loss_is_tried_on_training_records(self):
        def mean_loss(model, X, y):
            return squared_errors(model, X, y).mean()

        for call in (
            lambda e: e.losses([{"shift": 0.0}]),
            lambda e: e.try_on([{"shift": 0.0}]),
        ):
            with pytest.raises(InvalidArgumentError, match="one loss for each record"):
                call(evaluation(mean_loss))


class TestKinds:
    """The first model of every kind is checked not to mix records."""

    CANDIDATES = (
        {"shift": 0.0, "times": 1},
        {"shift": 1.0, "times": 1},
        {"shift": 2.0, "times": 2},
    )

    @pytest.fixture
    def checked(self, monkeypatch):
        models = []
        module = "botorch_dp.integrations.sklearn.evaluation.check_independence"
        monkeypatch.setattr(module, lambda _, model, __: models.append(model.shift))
        return models

    @pytest.mark.parametrize("backend", [None, "all at once"])
    def test_losses(self, backend, checked):
        joblib.register_parallel_backend("all at once", AllAtOnce)
        evaluated = evaluation(kind_of=lambda params: params["times"])
        with joblib.parallel_config(backend=backend or "loky"):
            evaluated.losses(self.CANDIDATES)
            evaluated.losses(self.CANDIDATES)
        assert checked == [0.0, 2.0]

    def test_threads(self, checked, monkeypatch):
        monkeypatch.setattr(training_threads, "_FAST", 60.0)
        evaluated = evaluation(kind_of=lambda params: params["times"])
        evaluated.n_jobs = 2
        evaluated.losses(self.CANDIDATES)
        assert checked == [0.0, 2.0]

    def test_private_points(self, checked):
        """All kinds are tried beforehand, as far as they can be trained."""
        evaluated = evaluation(
            points_are_private=True, kind_of=lambda params: params["times"]
        )
        evaluated.try_on([*self.CANDIDATES, {"shift": 6.0, "times": 3}])
        assert checked == [0.0, 2.0]
        evaluated.losses([{"shift": 3.0, "times": 4}])
        assert checked == [0.0, 2.0]

    def test_the_first_model_must_not_fail(self):
        with pytest.raises(FloatingPointError, match="diverged at 6"):
            evaluation().try_on([{"shift": 6.0}])


class TestLimits:
    def test_before_a_batch(self):
        evaluated = evaluation(limits=Limits(max_fits=2))
        evaluated.losses([{"shift": 0.0}])
        with pytest.raises(SearchStopped):
            evaluated.losses([{"shift": 0.0}, {"shift": 1.0}])
        assert evaluated.num_fits == 1  # a batch that would not end is not begun

    @pytest.mark.parametrize("n_jobs", [None, 2])
    def test_between_models(self, n_jobs, monkeypatch):
        evaluated = evaluation(limits=Limits(timeout=2.5))
        evaluated.n_jobs, start = n_jobs, stopping.now()
        monkeypatch.setattr(stopping, "now", lambda: start + evaluated.num_fits)
        with pytest.raises(SearchStopped):
            evaluated.losses([{"shift": float(i)} for i in range(4)])
        assert evaluated.num_fits == 3
        with pytest.raises(SearchStopped):
            evaluated.losses([{"shift": 0.0}])

    def test_not_after_the_last_model(self, monkeypatch):
        evaluated = evaluation(limits=Limits(timeout=2.5))
        start = stopping.now()
        monkeypatch.setattr(stopping, "now", lambda: start + 2 * evaluated.num_fits)
        assert evaluated.losses([{"shift": 0.0}, {"shift": 1.0}]).shape == (30, 2)


class TestBar:
    def test_counts_what_was_trained_before(self, capsys):
        evaluated = evaluation()
        evaluated.bar, evaluated.num_fits = progress_bar("search", 1), 3
        evaluated.expect(5)
        evaluated.losses([{"shift": 0.0}, {"shift": 1.0}])
        evaluated.bar.close()
        shown = capsys.readouterr().err
        assert "search: 100%" in shown
        assert "3/5" in shown
        assert "5/5" in shown

    @pytest.mark.parametrize(
        ("verbose", "is_terminal", "shell", "is_shown"),
        [
            (0, True, None, False),
            (1, False, None, True),
            (None, False, None, False),
            (None, True, None, True),
            (None, False, "ZMQInteractiveShell", True),
            (None, False, "TerminalInteractiveShell", False),
        ],
    )
    def test_where_somebody_watches(
        self, verbose, is_terminal, shell, is_shown, monkeypatch
    ):
        screen = io.StringIO()
        screen.isatty = lambda: is_terminal
        monkeypatch.setattr(sys, "stderr", screen)
        ipython = types.SimpleNamespace(
            get_ipython=lambda: None if shell is None else type(shell, (), {})()
        )
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        with progress_bar("search", verbose) as bar:
            assert bar.disable == (not is_shown)
