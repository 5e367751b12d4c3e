"""Classifiers of agents, against scikit-learn and autograd, on made-up data."""

import hashlib
import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from benchmarks.problems import DATASETS, ActivityAgents, Dataset, LandmineAgents
from botorch_dp.exceptions import InvalidArgumentError, MissingExtraError

CPU = torch.device("cpu")


def save(folder, monkeypatch, name, **arrays):
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(DATASETS, name, Dataset(path.name, digest, "made up"))
    return arrays


@pytest.fixture
def landmine(tmp_path, monkeypatch):
    """Three fields; the third has no mine in its validation half."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 3)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + rng.standard_normal(240) > 1.0).astype(np.int8)
    task = np.repeat([0, 1, 2], 80).astype(np.int16)
    is_train = np.tile([True, False], 120)
    y[(task == 2) & ~is_train] = 0
    arrays = {"X": X, "y": y, "task": task, "is_train": is_train}
    return tmp_path, save(tmp_path, monkeypatch, "landmine", **arrays)


@pytest.fixture
def activity(tmp_path, monkeypatch):
    """Two people and three activities, unequally often."""
    rng = np.random.default_rng(1)
    y = np.tile([1, 1, 2, 2, 3, 3, 3], 40).astype(np.int8)
    centres = 2.0 * rng.standard_normal((4, 5))
    X = (centres[y] + rng.standard_normal((280, 5))).astype(np.float32)
    subject = rng.permutation(np.repeat([1, 2], 140)).astype(np.int8)
    return tmp_path, save(tmp_path, monkeypatch, "har", X=X, y=y, subject=subject)


def points(*rows, **tkwargs):
    return torch.tensor(rows, **{"dtype": torch.float64, "device": CPU, **tkwargs})


def area_under_curve(y, scores):
    """The share of pairs in the right order."""
    differences = scores[y == 1][:, None] - scores[y == 0][None]
    return ((differences > 0) + 0.5 * (differences == 0)).mean()


class TestLandmine:
    def test_scores(self, landmine):
        folder, arrays = landmine
        problem = LandmineAgents(folder, device=CPU)
        assert (problem.num_agents, problem.dim) == (3, 2)
        assert problem.bounds.tolist() == [[0, 0], [1, 1]]
        X = points([[0.2, 0.0], [0.9, 0.5]]).expand(2, 2, 2)
        scores = problem.evaluate(torch.tensor([1, 0], device=CPU), X)
        for row, task in enumerate([1, 0]):
            mine = arrays["task"] == task
            train, rest = mine & arrays["is_train"], mine & ~arrays["is_train"]
            for column, (C, gamma) in enumerate(
                [(1e-4 + 0.2 * (10 - 1e-4), 0.01), (1e-5 + 9.0, 5.005)]
            ):
                machine = SVC(C=C, gamma=gamma).fit(
                    arrays["X"][train], arrays["y"][train]
                )
                decisions = machine.decision_function(arrays["X"][rest])
                expected = area_under_curve(arrays["y"][rest], decisions)
                assert float(scores[row, column]) == pytest.approx(expected, abs=1e-6)
        assert 0.5 < float(scores.max()) < 1.0

    def test_settings(self, landmine):
        problem = LandmineAgents(landmine[0], device=CPU)
        corners = problem.settings(points([0.0, 1.0], [1.0, 0.0]))
        expected = points([1e-4, 10.0], [10.0, 0.01])
        torch.testing.assert_close(corners, expected)

    def test_deterministic_and_remembered(self, landmine, monkeypatch):
        problem = LandmineAgents(landmine[0], device=CPU)
        calls, fit = [], problem._fit
        monkeypatch.setattr(
            problem, "_fit", lambda data, new: calls.append(len(new)) or fit(data, new)
        )
        X = points([[0.3, 0.3], [0.3, 0.3], [0.4, 0.3]]).expand(2, 3, 2)
        agents = torch.tensor([0, 1], device=CPU)
        first = problem.evaluate(agents, X)
        assert calls == [2, 2]
        assert torch.equal(first[:, 0], first[:, 1])
        assert torch.equal(problem.evaluate(agents, X), first)
        assert calls == [2, 2]
        # The same agent twice, with one point that is new.
        twice = torch.tensor([1, 1], device=CPU)
        mixed = problem.evaluate(twice, points([[0.4, 0.3]], [[0.9, 0.3]]))
        assert calls == [2, 2, 1]
        assert float(mixed[0, 0]) == float(first[1, 2])
        again = LandmineAgents(landmine[0], device=CPU, n_jobs=2)
        assert torch.equal(again.evaluate(agents, X), first)

    def test_one_class(self, landmine):
        """Private values do not raise."""
        problem = LandmineAgents(landmine[0], device=CPU)
        scores = problem.evaluate(torch.tensor([2], device=CPU), points([[0.3, 0.3]]))
        assert scores.tolist() == [[0.5]]

    def test_tabulate(self, landmine, tkwargs):
        problem = LandmineAgents(landmine[0], **tkwargs)
        table = problem.tabulate(3)
        assert table.values.shape == (3, 9)
        assert table.values.dtype == tkwargs["dtype"]
        X = points([[0.5, 1.0]], **tkwargs).expand(3, 1, 2)
        assert torch.equal(table.evaluate(None, X), problem.evaluate(None, X))

    @pytest.mark.parametrize("module", ["sklearn.svm", "sklearn.metrics"])
    def test_missing_extra(self, landmine, monkeypatch, module):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=r"LandmineAgents.*\[sklearn\]"):
            LandmineAgents(landmine[0], device=CPU)

    def test_no_data(self, tmp_path):
        with pytest.raises(InvalidArgumentError, match=r"must contain landmine\.npz"):
            LandmineAgents(tmp_path, device=CPU)


class TestActivity:
    def test_halves(self, activity):
        folder, arrays = activity
        problem = ActivityAgents(folder, device=CPU)
        assert (problem.num_agents, problem.dim) == (2, 3)
        for subject, data in zip([1, 2], problem._agents, strict=True):
            mine = arrays["subject"] == subject
            for label in range(3):
                count = int((mine & (arrays["y"] == label + 1)).sum())
                train = int((data.y_train == label).sum())
                assert train == (count + 1) // 2
                assert int((data.y_val == label).sum()) == count - train
            rows = torch.cat([data.X_train, data.X_val])
            # Every row once, with a column of ones.
            assert (rows[:, -1] == 1).all()
            expected = np.sort(arrays["X"][mine].astype(float), axis=0)
            np.testing.assert_array_equal(np.sort(rows[:, :-1].numpy(), 0), expected)
        same = ActivityAgents(folder, device=CPU)._agents[0].X_train
        assert torch.equal(problem._agents[0].X_train, same)
        other = ActivityAgents(folder, seed=1, device=CPU)._agents[0].X_train
        assert not torch.equal(problem._agents[0].X_train, other)

    def test_descent(self, activity):
        """By autograd on the loss, one setting at a time."""
        problem = ActivityAgents(activity[0], num_epochs=2, seed=3, device=CPU)
        data = problem._agents[0]
        rates, penalties = points(0.05, 0.02), points(0.1, 1.0)
        weights = problem._descend(data, rates, penalties, 30)
        assert weights.shape == (6, 2, 3)
        for j in range(2):
            W = torch.zeros(6, 3, dtype=torch.float64, device=CPU, requires_grad=True)
            generator = torch.Generator(device="cpu").manual_seed(3)
            for _ in range(2):
                order = torch.randperm(
                    len(data.X_train), generator=generator, device=CPU
                )
                for rows in order.split(30):
                    loss = torch.nn.functional.cross_entropy(
                        data.X_train[rows] @ W, data.y_train[rows]
                    )
                    loss = loss + penalties[j] / 2 * W.square().sum()
                    (gradient,) = torch.autograd.grad(loss, W)
                    W = (W - rates[j] * gradient).detach().requires_grad_()
            torch.testing.assert_close(weights[:, j], W.detach(), rtol=0, atol=1e-12)

    def test_converges_to_logistic_regression(self, activity):
        """Full batches, long enough."""
        problem = ActivityAgents(activity[0], num_epochs=20_000, device=CPU)
        data = problem._agents[0]
        count = len(data.X_train)
        weights = problem._descend(data, points(0.1), points(0.05), count)[:, 0]
        machine = LogisticRegression(
            C=1 / (0.05 * count), fit_intercept=False, tol=1e-10, max_iter=1000
        ).fit(data.X_train.numpy(), data.y_train.numpy())
        np.testing.assert_allclose(weights.T.numpy(), machine.coef_, atol=1e-4)

    def test_scores(self, activity):
        problem = ActivityAgents(activity[0], device=CPU)
        X = points([[1.0, 0.2, 0.26], [0.0, 1.0, 1.0], [1.0, 0.2, 0.25]])
        X = X.expand(2, 3, 3)
        settings = problem.settings(X[0])
        expected = points(
            [0.1, 1e-6 * 1e7**0.2, 30.0],
            [0.01, 10.0, 60.0],
            [0.1, 1e-6 * 1e7**0.2, 30.0],
        )
        torch.testing.assert_close(settings, expected)
        scores = problem.evaluate(None, X)
        # A batch size is a whole number.
        assert torch.equal(scores[:, 0], scores[:, 2])
        for agent in range(2):
            data = problem._agents[agent]
            for j in range(2):
                rate, penalty, size = settings[j]
                weights = problem._descend(data, rate[None], penalty[None], int(size))
                hits = (data.X_val @ weights[:, 0]).argmax(dim=-1) == data.y_val
                assert float(scores[agent, j]) == float(hits.double().mean())
        assert (scores[:, 0] > 0.8).all()
        assert (scores[:, 1] < scores[:, 0]).any()

    def test_rejects(self, activity):
        with pytest.raises(InvalidArgumentError, match="num_epochs"):
            ActivityAgents(activity[0], num_epochs=0, device=CPU)

    def test_missing_extra(self, activity, monkeypatch):
        problem = ActivityAgents(activity[0], device=CPU)
        monkeypatch.setitem(sys.modules, "joblib", None)
        with pytest.raises(MissingExtraError, match=r"ActivityAgents.*\[sklearn\]"):
            problem.evaluate(None, points([[0.5] * 3]).expand(2, 1, 3))
