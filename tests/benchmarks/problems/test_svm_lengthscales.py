"""Support vector regression, against scikit-learn's own predictions."""

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from benchmarks.problems import SVMLengthscales
from botorch_dp.exceptions import InvalidArgumentError, MissingExtraError


@pytest.fixture
def arrays():
    X, y = make_friedman1(n_samples=90, n_features=6, noise=1.0, random_state=0)
    return X[:50] * 7 - 3, y[:50], X[50:] * 7 - 3, y[50:]


@pytest.fixture
def X(double):
    generator = torch.Generator(device="cpu").manual_seed(0)
    lower = torch.tensor([-2.0] * 6 + [0.01, 0.1, 0.01], **double)
    upper = torch.tensor([2.0] * 6 + [1.0, 3.0, 5.0], **double)
    return lower + (upper - lower) * torch.rand(4, 9, generator=generator, **double)


def test_losses_against_scikit_learn(arrays, X, double):
    X_train, y_train, X_val, y_val = arrays
    problem = SVMLengthscales(*arrays, **double)
    assert torch.equal(problem.bounds[:, :6], problem.bounds[:, :1].expand(2, 6))
    losses = problem(X)
    for j, candidate in enumerate(X.numpy()):
        scaler = StandardScaler().fit(X_train)
        features = [
            scaler.transform(a) / np.exp(candidate[:6]) for a in (X_train, X_val)
        ]
        epsilon, penalty, gamma = candidate[6:]
        machine = SVR(kernel="rbf", epsilon=epsilon, C=penalty, gamma=gamma)
        machine.fit(features[0], (y_train - y_train.mean()) / y_train.std())
        predicted = machine.predict(features[1])
        expected = ((y_val - y_train.mean()) / y_train.std() - predicted) ** 2
        np.testing.assert_allclose(
            losses[:, j].numpy(), expected, rtol=1e-7, atol=1e-12
        )


def test_equal_length_scales_are_a_plain_machine(arrays, double):
    """Through a pipeline, as a user would write it."""
    X_train, y_train, X_val, y_val = arrays
    problem = SVMLengthscales(*arrays, **double)
    x = torch.tensor([[0.0] * 6 + [0.1, 2.0, 0.2]], **double)
    machine = make_pipeline(StandardScaler(), SVR(gamma=0.2, C=2.0, epsilon=0.1))
    machine.fit(X_train, (y_train - y_train.mean()) / y_train.std())
    targets = (y_val - y_train.mean()) / y_train.std()
    expected = np.mean((machine.predict(X_val) - targets) ** 2)
    assert float(problem.evaluate_true(x)) == pytest.approx(expected, rel=1e-7)


def test_inputs_may_be_tensors(arrays, X, double):
    tensors = [torch.from_numpy(array) for array in arrays]
    losses = SVMLengthscales(*arrays, **double)(X)
    assert torch.equal(SVMLengthscales(*tensors, **double)(X), losses)


def test_parallel(arrays, X, double):
    losses = SVMLengthscales(*arrays, **double)(X)
    assert torch.equal(SVMLengthscales(*arrays, n_jobs=2, **double)(X), losses)


def test_constant_features(arrays, X, double):
    X_train, y_train, X_val, y_val = arrays
    X_train, X_val = X_train.copy(), X_val.copy()
    X_train[:, 2] = X_val[:, 2] = 3.0
    assert SVMLengthscales(X_train, y_train, X_val, y_val, **double)(X).isfinite().all()


def test_private_values_do_not_raise(arrays, X, double):
    X_train, y_train, X_val, y_val = arrays
    X_val = X_val.copy()
    X_val[0, 0] = np.nan
    losses = SVMLengthscales(X_train, y_train, X_val, y_val, **double)(X)
    assert losses[0].isnan().all()
    assert losses[1:].isfinite().all()


def test_from_arrays(double):
    # Every entry is different, so that rows and columns can be found again.
    X = np.arange(400.0).reshape(40, 10) ** 1.5
    y = np.arange(40.0) ** 2
    drawn = {"num_train": 15, "num_records": 20, "num_features": 4}
    problem = SVMLengthscales.from_arrays(X, y, **drawn, seed=1, **double)
    assert (problem.dim, problem.num_records, problem.num_features) == (7, 20, 4)
    assert problem.transform == ("linear",) * 4 + ("log",) * 3
    targets = torch.cat([problem._train_targets, problem._targets])
    assert len(targets.unique()) == 35  # no row twice
    # Standardized features keep their order: the largest row is so in all columns.
    rows = torch.cat([problem._train_inputs, problem._inputs])
    assert (rows.argsort(dim=0) == targets.argsort().unsqueeze(-1)).all()
    same = SVMLengthscales.from_arrays(X, y, **drawn, seed=1, **double)
    other = SVMLengthscales.from_arrays(X, y, **drawn, seed=2, **double)
    assert torch.equal(same._inputs, problem._inputs)
    assert not torch.allclose(other._inputs, problem._inputs)


def test_synthetic(double):
    problem = SVMLengthscales.synthetic(num_records=2000, num_train=2000, **double)
    assert problem.dim == 33
    # Uniform features end at sqrt(3) standard deviations.
    assert float(problem._inputs.abs().max()) == pytest.approx(3**0.5, abs=0.1)
    columns = torch.cat([problem._inputs, problem._targets.unsqueeze(-1)], dim=-1)
    correlations = columns.T.corrcoef()[-1, :-1].numpy()
    # As of the data that scikit-learn makes; standard errors 0.02.
    X, y = make_friedman1(n_samples=20000, n_features=30, noise=1.0, random_state=0)
    expected = np.corrcoef(X, y, rowvar=False)[-1, :-1]
    np.testing.assert_allclose(correlations, expected, atol=0.1)
    assert correlations[3] > 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a: SVMLengthscales(a[0][0], *a[1:]),
            r"X_train must be rows x features",
        ),
        (lambda a: SVMLengthscales(*a[:3], a[3][:-1]), r"y_val one number per row"),
        (lambda a: SVMLengthscales(*a[:2], a[2][:, :2], a[3]), "6 features of X_train"),
        (lambda a: SVMLengthscales(a[0] * np.nan, *a[1:]), "must be finite"),
        (
            lambda a: SVMLengthscales.from_arrays(
                *a[:2], num_train=40, num_records=20, num_features=2
            ),
            "at most the 50 rows",
        ),
        (
            lambda a: SVMLengthscales.from_arrays(
                *a[:2], num_train=20, num_records=20, num_features=7
            ),
            "at most the 6 features",
        ),
        (lambda a: SVMLengthscales.synthetic(num_features=4), "num_features"),
    ],
)
def test_rejects(arrays, call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call(arrays)


@pytest.mark.parametrize("module", ["sklearn.svm", "joblib"])
def test_missing_extra(monkeypatch, arrays, module, double):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"botorch-dp\[sklearn\]"):
        SVMLengthscales(*arrays, **double)
