"""Agents with parts of a data set: against scikit-learn, a loop, and by counting."""

import hashlib

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

from benchmarks.problems import DATASETS, Dataset, split_agents
from benchmarks.problems.split_agents import (
    KernelClassifier,
    Records,
    SoftmaxRegression,
    generated,
    split,
)

pytestmark = pytest.mark.default_device


@pytest.fixture
def records():
    return generated(0, num_records=1500)


class TestSplit:
    @pytest.mark.parametrize("skew", [None, 0.3])
    def test_no_record_has_two_agents(self, records, skew):
        rows = split(records, 20, 60, skew=skew, seed=1)
        assert rows.shape == (20, 60)
        assert len(rows.unique()) == 1200
        assert torch.equal(rows, split(records, 20, 60, skew=skew, seed=1))
        assert not torch.equal(rows, split(records, 20, 60, skew=skew, seed=2))

    def test_labels_are_skewed(self, records):
        largest = {}
        for skew in (None, 10.0, 0.1):
            labels = records.y[split(records, 20, 60, skew=skew, seed=1)]
            shares = torch.nn.functional.one_hot(labels).double().mean(dim=1)
            largest[skew] = float(shares.max(dim=-1).values.mean())
        assert largest[None] < 0.4
        assert largest[10.0] < 0.5
        assert largest[0.1] > 0.7

    def test_records_run_out(self, records):
        """Labels are taken from those that are left."""
        rows = split(records, 15, 100, skew=0.1, seed=1)
        assert len(rows.unique()) == 1500


class TestKernel:
    def test_equals_scikit_learn(self, records):
        model = KernelClassifier()
        rows = split(records, 2, 80, skew=None, seed=0)
        found = model.tables(records, rows, 40, 10)
        unit = 1 / (20 * float(records.X.var()))
        for agent, own in enumerate(rows):
            X, y = records.X[own].double().numpy(), records.y[own].numpy()
            targets = 2 * np.eye(4)[y[:40]] - 1
            for index in (0, 24, 40, 76):
                gamma, ridge = model.settings()[index].tolist()
                machine = KernelRidge(alpha=ridge, kernel="rbf", gamma=gamma * unit)
                machine.fit(X[:40], targets)
                hits = machine.predict(X[40:]).argmax(-1) == y[40:]
                got = [float(t[agent, index]) for t in (found.validation, found.test)]
                assert got == pytest.approx([hits[:10].mean(), hits[10:].mean()])

    def test_the_guess(self):
        model = KernelClassifier()
        assert model.settings()[model.guessed()].tolist() == pytest.approx([1.0, 1.0])


class TestSoftmax:
    def test_equals_one_model_at_a_time(self, records):
        """A gradient step by autograd, for each setting and batch."""
        model = SoftmaxRegression()
        model.num_epochs = 2
        X = records.X[:50]
        Y = torch.eye(4)[records.y[:50]]
        settings = model.settings().float()[[0, 40, 134]]
        weights = model._train(X, Y, settings, 0.3)
        for index, (rate, penalty, _) in enumerate(settings):
            W = torch.zeros(20, 4, requires_grad=True)
            generator = torch.Generator().manual_seed(0)
            for _ in range(2):
                for batch in torch.randperm(50, generator=generator).split(20):
                    kept = torch.rand(len(batch), 20, generator=generator) >= 0.3
                    logits = (X[batch] * kept / 0.7) @ W
                    loss = torch.nn.functional.cross_entropy(logits, Y[batch])
                    (gradient,) = torch.autograd.grad(loss, W)
                    stepped = (W - rate * gradient) / (1 + rate * penalty)
                    W = stepped.detach().requires_grad_()
            assert torch.allclose(weights[:, index], W, rtol=1e-3, atol=1e-5)

    def test_accuracies(self, records):
        model = SoftmaxRegression()
        rows = split(records, 2, 80, skew=None, seed=0)
        found = model.tables(records, rows, 40, 20)
        assert found.validation.shape == found.test.shape == (2, 135)
        assert float(found.test.max()) > 0.5
        guess = model.settings()[model.guessed()].tolist()
        assert guess == pytest.approx([0.1, 1e-4, 0.0])


class TestData:
    @pytest.fixture
    def save(self, tmp_path, monkeypatch):
        monkeypatch.setenv("BOTORCH_DP_DATA", str(tmp_path))

        def make(name, **arrays):
            path = tmp_path / f"{name}.npz"
            np.savez(path, **arrays)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            monkeypatch.setitem(DATASETS, name, Dataset(path.name, digest, "made up"))

        return make

    def test_adult(self, save):
        rng = np.random.default_rng(0)
        numeric = rng.integers(0, 50, (9, 6)).astype(np.int32)
        codes = np.arange(9, dtype=np.uint8) % 3
        levels = np.array(["a", "b", "c", "d"])
        y = codes % 2
        save("adult", numeric=numeric, cat_sex=codes, levels_sex=levels, y=y)
        records = split_agents.adult()
        assert records.X.shape == (9, 6 + 4)
        assert torch.allclose(records.X[:, :6].mean(dim=0), torch.zeros(6), atol=1e-6)
        assert torch.equal(records.X[:, 6:].argmax(dim=-1), torch.arange(9) % 3)
        assert records.num_classes == 2

    def test_mnist(self, save):
        images = np.zeros((3, 28, 28), dtype=np.uint8)
        images[0, :2, :2] = 255
        images[1, 27, 27] = 255
        labels = np.array([3, 1, 4], dtype=np.uint8)
        save(
            "mnist",
            X_train=images[:2],
            y_train=labels[:2],
            X_test=images[2:],
            y_test=labels[2:],
        )
        records = split_agents.mnist()
        assert records.X.shape == (3, 196)
        assert records.X[0].tolist() == [1.0] + [0.0] * 195
        assert float(records.X[1, -1]) == 0.25
        assert records.y.tolist() == [3, 1, 4]

    def test_activities(self, save):
        X = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
        save("har", X=X, y=np.array([1, 2, 3, 1, 2, 3, 1, 2]))
        records = split_agents.activities()
        assert records.num_classes == 3
        assert torch.allclose(records.X.std(dim=0, correction=0), torch.ones(3))

    def test_variance(self):
        assert Records(torch.eye(2), torch.arange(2)).variance == pytest.approx(1 / 3)
