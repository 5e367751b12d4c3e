"""Fares and frauds, on made-up rows: features, orders, and errors on the test set."""

import datetime
import hashlib
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from benchmarks.problems import DATASETS, CreditCardStream, Dataset, UberStream
from botorch_dp.exceptions import InvalidArgumentError

CPU = torch.device("cpu")
# A Monday at midnight, a Thursday (the first of all), and a Sunday evening.
TIMES = [
    datetime.datetime(2014, 3, 3, 0, 59, 59, tzinfo=datetime.UTC),
    datetime.datetime(1970, 1, 1, 12, 0, 0, tzinfo=datetime.UTC),
    datetime.datetime(2015, 6, 7, 23, 30, 0, tzinfo=datetime.UTC),
]


def store(folder, monkeypatch, name, **columns):
    path = folder / f"{name}.npz"
    np.savez(path, **columns)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(DATASETS, name, Dataset(path.name, digest, "made up"))
    return folder


@pytest.fixture
def fares(tmp_path, monkeypatch):
    """Sixty rows whose fares are all different."""
    n = 60
    times = np.array([int(TIMES[i % 3].timestamp()) for i in range(n)])
    return store(
        tmp_path,
        monkeypatch,
        "uber",
        fare_amount=np.arange(n, dtype=np.float32) + 3,
        pickup_longitude=np.full(n, -73.9, dtype=np.float64),
        pickup_latitude=np.full(n, 40.7, dtype=np.float64),
        dropoff_longitude=-73.9 - 0.01 * np.arange(n),
        dropoff_latitude=np.full(n, 40.75, dtype=np.float64),
        passenger_count=(1 + np.arange(n) % 6).astype(np.int8),
        pickup_unix=times,
    )


@pytest.fixture
def frauds(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    labels = (np.arange(400) % 10 == 0).astype(np.int8)
    V = generator.normal(size=(400, 28)) + 0.7 * labels[:, None]
    V = V.round(1).astype(np.float32)  # some scores are tied
    return store(tmp_path, monkeypatch, "creditcard", V=V, Class=labels)


def test_fare_features(fares, double):
    stream = UberStream(fares, num_steps=40, **double)
    assert (stream.dim, stream.num_test) == (4, 20)
    assert not stream.initial_x.any()
    features, targets = stream._features, stream._targets
    for i in range(60):
        east = 0.01 * i * 111.2 * math.cos(math.radians(40.75))
        time = TIMES[i % 3]
        assert features[i].tolist() == pytest.approx(
            [
                (0.05 * 111.2 + east) / 5,
                (time.hour - 12) / 12,
                (time.weekday() - 3) / 3,
                (i % 6) / 2.5,
            ],
            abs=1e-9,
        )
        assert float(targets[i]) == pytest.approx(i / 5)
    longer = UberStream(fares, num_steps=40, intercept=True, **double)
    assert longer.dim == 5
    assert torch.equal(longer._features[:, :4], features)
    assert (longer._features[:, 4] == 1).all()


def test_data_from_the_variable(fares, monkeypatch, double):
    monkeypatch.setenv("BOTORCH_DP_DATA", str(fares))
    assert UberStream(num_steps=40, **double).num_test == 20


def test_losses_are_of_the_rows_in_their_order(fares, double):
    stream = UberStream(fares, num_steps=40, c=0.5, num_replications=3, **double)
    assert stream.gradient_bound == 0.5 * math.sqrt(2)
    x = torch.tensor([[0.5, 0.1, -0.3, 1.0]], **double)
    for r in range(3):
        rows = torch.cat([stream._order[r], stream._test_rows[r]])
        assert sorted(rows.tolist()) == list(range(60))  # every row once
        for step in (1, 17, 40):
            row = stream._features[rows[step - 1]]
            residual = abs(float(stream._targets[rows[step - 1]] - row @ x[0]))
            huber = residual**2 / 2 if residual < 0.5 else 0.5 * residual - 0.125
            expected = huber * min(1.0, 2 / float(row @ row))
            assert float(stream.losses(step, x)[r, 0]) == pytest.approx(expected)
    assert not torch.equal(stream._order[0], stream._order[1])


def test_fare_errors(fares, tkwargs):
    stream = UberStream(fares, num_steps=40, num_replications=3, **tkwargs)
    x = torch.tensor([[0.5, 0.1, -0.3, 1.0], [0.0] * 4, [1.0] * 4], **tkwargs)
    errors = stream.evaluate(x)
    assert sorted(errors) == ["mean_absolute_error", "mean_squared_error"]
    for r in range(3):
        rows = stream._test_rows[r]
        fares_of_rows = (rows + 3).to(tkwargs["dtype"])
        difference = 3 + 5 * (stream._features[rows] @ x[r]) - fares_of_rows
        values = {name: float(value[r]) for name, value in errors.items()}
        assert values == {
            "mean_absolute_error": pytest.approx(float(difference.abs().mean()), 1e-5),
            "mean_squared_error": pytest.approx(
                float(difference.square().mean()), 1e-5
            ),
        }
    with pytest.raises(InvalidArgumentError, match="x must be"):
        stream.evaluate(x[:2])


@pytest.mark.parametrize("intercept", [True, False])
def test_fraud_errors(frauds, tkwargs, intercept):
    stream = CreditCardStream(
        frauds, num_steps=250, intercept=intercept, num_replications=3, **tkwargs
    )
    assert stream.dim == 5 + intercept
    x = torch.ones(3, stream.dim, **tkwargs)
    # With equal weights, rounding decides the signs of sums that cancel.
    x[:, :5] = torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0], **tkwargs).sqrt()
    x[1] = 0.0  # all scores tied
    x[2, 1:4] = 0.0
    if intercept:
        x[:, -1] = -3.0
    errors = stream.evaluate(x)
    assert sorted(errors) == ["accuracy", "balanced_accuracy", "roc_auc"]
    for r in range(3):
        rows = stream._test_rows[r]
        labels = (rows % 10 == 0).numpy()
        scores = (stream._features[rows] @ x[r]).numpy()
        assert errors["accuracy"].dtype == errors["roc_auc"].dtype == tkwargs["dtype"]
        assert float(errors["accuracy"][r]) == pytest.approx(
            np.mean((scores > 0) == labels)
        )
        assert float(errors["balanced_accuracy"][r]) == pytest.approx(
            balanced_accuracy_score(labels, scores > 0)
        )
        # Rounding breaks ties of one product differently from another's.
        assert float(errors["roc_auc"][r]) == pytest.approx(
            roc_auc_score(labels, scores), abs=2e-3
        )
    assert float(errors["roc_auc"][1]) == 0.5
    assert float(errors["roc_auc"][0]) > 0.7


def test_fraud_labels_and_losses(frauds, double):
    stream = CreditCardStream(frauds, num_steps=250, num_replications=3, **double)
    labels = torch.where(torch.arange(400, device=CPU) % 10 == 0, 1.0, -1.0)
    assert torch.equal(stream._targets, labels.double())
    x = torch.tensor([[0.5, 0.1, -0.3, 1.0, 0.2, -2.0]], **double)
    for r in range(3):
        row = stream._order[r, 6]
        features = stream._features[row]
        margin = float(labels[row] * (features @ x[0]))
        weight = min(1.0, 2 / float(features @ features))
        expected = weight * math.log1p(math.exp(-margin))
        assert float(stream.losses(7, x)[r, 0]) == pytest.approx(expected)


def test_thinning(frauds, double):
    options = {"num_steps": 250, "fraud_share": 0.02, **double}
    stream = CreditCardStream(frauds, seed=1, **options)
    # 360 others, so 7 of 40 frauds: 7 / 367 = 0.019.
    assert len(stream._features) == 367
    assert int((stream._targets > 0).sum()) == 7
    everything = CreditCardStream(frauds, num_steps=250, **double)._features
    assert all((everything == row).all(dim=-1).any() for row in stream._features)
    same = CreditCardStream(frauds, seed=1, **options)
    other = CreditCardStream(frauds, seed=2, **options)
    assert torch.equal(same._features, stream._features)
    assert not torch.equal(other._features, stream._features)


def test_one_class_in_the_test_set(frauds, double):
    stream = CreditCardStream(frauds, num_steps=399, num_replications=2, **double)
    errors = stream.evaluate(torch.ones(2, 6, **double))
    assert errors["accuracy"].isfinite().all()
    assert errors["balanced_accuracy"].isnan().all()
    assert errors["roc_auc"].isnan().all()


def test_rejects(fares, frauds):
    for call in (UberStream, CreditCardStream):
        with pytest.raises(InvalidArgumentError, match="below the number of rows"):
            call(frauds, device=CPU)  # both are in the same folder
        with pytest.raises(InvalidArgumentError, match="num_steps"):
            call(frauds, num_steps=0, device=CPU)
    with pytest.raises(
        InvalidArgumentError, match=r"at most that of the data, 0\.1000"
    ):
        CreditCardStream(frauds, fraud_share=0.2, num_steps=9, device=CPU)
    with pytest.raises(InvalidArgumentError, match="fraud_share must lie"):
        CreditCardStream(frauds, fraud_share=1.0, num_steps=9, device=CPU)
    with pytest.raises(InvalidArgumentError, match="c must be"):
        UberStream(fares, c=0.0, num_steps=9, device=CPU)


def test_weights_are_optional(fares, double):
    weighted = UberStream(fares, num_steps=40, **double)
    plain = UberStream(fares, num_steps=40, mallows=False, **double)
    assert plain.gradient_bound is None
    features = plain._features[plain._order[0, 0]]
    weight = min(1.0, 2 / float(features @ features))
    x = torch.zeros(4, **double)
    assert torch.allclose(weighted.gradients(1, x), weight * plain.gradients(1, x))
