"""The real tasks: losses against loops, a kernel against scikit-learn's, splits."""

import math

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.kernel_ridge import KernelRidge

from benchmarks.contenders import real_tasks
from benchmarks.contenders.real_tasks import (
    REAL_TASKS,
    ARDKernelRidge,
    RealTask,
    errors,
    log_losses,
    relative_squares,
)
from botorch_dp.integrations.sklearn.space import SearchSpace

pytestmark = pytest.mark.default_device  # benchmarks run on the CPU
SHIPPED = [name for name, task in REAL_TASKS.items() if not task.needs_data]


def test_losses_of_classes():
    X, y = np.zeros((10, 1)), np.array([0] * 7 + [1] * 3)
    model = DummyClassifier(strategy="prior").fit(X, y)
    assert errors(model, X, y).tolist() == [0.0] * 7 + [1.0] * 3
    expected = [-math.log(0.7)] * 7 + [-math.log(0.3)] * 3
    assert log_losses(model, X, y) == pytest.approx(expected)
    sure = DummyClassifier(strategy="constant", constant=0).fit(X, y)
    assert log_losses(sure, X, y)[-1] == pytest.approx(math.log(100))


def test_squares_are_clipped():
    X, y = np.zeros((3, 1)), np.array([0.0, 1.5, 9.0])
    model = DummyRegressor(strategy="constant", constant=0.0).fit(X, y)
    assert relative_squares(model, X, y).tolist() == [0.0, 2.25, 4.0]


def test_ard_kernel_ridge_is_kernel_ridge_on_scaled_features():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 10)), rng.normal(size=30)
    scales = rng.uniform(0.5, 3.0, size=10)
    parameters = {f"l{i}": scale for i, scale in enumerate(scales)}
    model = ARDKernelRidge(**parameters, alpha=0.3).fit(X, y)
    reference = KernelRidge(kernel="rbf", gamma=0.5, alpha=0.3)
    reference.fit(X / scales, y - y.mean())
    new = rng.normal(size=(5, 10))
    expected = reference.predict(new / scales) + y.mean()
    assert model.predict(new) == pytest.approx(expected)


@pytest.mark.parametrize("name", SHIPPED)
def test_splits(name):
    task = REAL_TASKS[name]
    parts, again, other = task.split(1), task.split(1), task.split(2)
    assert tuple(len(y) for _, y in parts) == task.sizes
    for (X, y), (X_again, y_again) in zip(parts, again, strict=True):
        assert np.array_equal(X, X_again)
        assert np.array_equal(y, y_again)
    assert not np.array_equal(parts[1][1], other[1][1])
    X, y = parts[0]
    varies = X.std(axis=0) > 0
    assert X.mean(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert X.std(axis=0)[varies] == pytest.approx(1.0)
    if task.loss is relative_squares:
        assert (y.mean(), y.std()) == pytest.approx((0.0, 1.0))


def test_a_split_has_no_record_twice():
    X = np.arange(20.0)[:, None]
    task = RealTask(
        data=lambda: (X, np.arange(20)),
        model=DummyClassifier,
        space={},
        loss=errors,
        loss_range=(0.0, 1.0),
        sizes=(8, 7, 5),
    )
    labels = np.concatenate([y for _, y in task.split(0)])
    assert sorted(labels) == list(range(20))


def test_a_split_needs_enough_records():
    task = RealTask(
        data=lambda: (np.zeros((3, 1)), np.zeros(3)),
        model=DummyClassifier,
        space={},
        loss=errors,
        loss_range=(0.0, 1.0),
        sizes=(2, 2, 2),
    )
    with pytest.raises(ValueError, match="3 records are fewer"):
        task.split(0)


@pytest.mark.parametrize("name", SHIPPED)
def test_losses_lie_in_their_range(name):
    task = REAL_TASKS[name]
    train, private, _ = task.split(0)
    losses = task.loss(task.model().fit(*train), *private)
    assert losses.shape == (task.sizes[1],)
    assert losses.min() >= task.loss_range[0]
    assert losses.max() <= task.loss_range[1] + 1e-9
    assert losses.std() > 0


@pytest.mark.parametrize("name", REAL_TASKS)
def test_the_start_is_inside_the_space(name):
    task = REAL_TASKS[name]
    defaults = task.model().get_params()
    start = SearchSpace(task.space).start(defaults)
    assert start == {key: defaults[key] for key in task.space}


def test_adult_needs_the_data(monkeypatch):
    monkeypatch.delenv("BOTORCH_DP_DATA", raising=False)
    needing = [name for name, task in REAL_TASKS.items() if not task.is_available]
    assert needing == ["boosting-adult", "logistic-adult"]
    arrays = {
        "numeric": np.ones((4, 6), dtype=np.int32),
        "y": np.array([0, 1, 0, 1], dtype=np.uint8),
        "cat_sex": np.array([0, 1, 1, 0], dtype=np.uint8),
        "cat_native-country": np.array([3, 1, 1, 0], dtype=np.uint8),
    }
    monkeypatch.setattr(real_tasks, "load_dataset", lambda name: arrays)
    X, y = real_tasks.adult_all.__wrapped__()
    assert X[:, 6:].tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]
    assert y.tolist() == [0, 1, 0, 1]
    assert real_tasks.adult_numbers.__wrapped__()[0].shape == (4, 6)
