"""Expected accuracies and bounds of Figure 7, against simulation and known numbers."""

import math

import numpy as np
import pytest

from benchmarks import _selection_figure as figure
from botorch_dp.privacy.counts import Poisson, TruncatedNegativeBinomial

pytestmark = pytest.mark.default_device


def test_the_largest_learning_rates_are_shown():
    rates = np.linspace(1, 0, 1000)
    shown = figure.shown_accuracies({"learning_rate": rates, "accuracy": -rates})
    assert len(shown) == 400
    assert (np.diff(shown) > 0).all()
    assert shown.max() == pytest.approx(-rates[399])


@pytest.mark.parametrize("name", ["Poisson", "geometric", "geometric, at least 3"])
def test_the_expected_best_agrees_with_simulation(name):
    random = np.random.default_rng(0)
    accuracies = np.sort(random.random(50))
    count = figure.COUNTS[name](5)
    shares = count.probabilities(count.most)
    drawn = random.choice(len(shares), size=5_000, p=shares / shares.sum())
    best = [
        random.choice(accuracies, size=k).max() if k else figure.CHANCE for k in drawn
    ]
    error = np.std(best) / math.sqrt(len(best))
    expected = figure.expected_best(count, accuracies)
    assert expected == pytest.approx(np.mean(best), abs=4 * error)


def test_a_fixed_number_of_runs():
    assert figure.best_of_fixed(2, np.array([0.0, 1.0])) == pytest.approx(0.75)


def test_counts_that_do_not_exist_are_left_out():
    means = [count.mean for count in figure.counts_of("geometric, at least 3")]
    assert min(means) == 3
    assert {count.least for count in figure.counts_of("geometric, at least 3")} == {3}


def test_bounds_are_those_known_beforehand():
    """16 runs with batches of 256, 60 epochs and noise 1.1."""
    assert figure.composed_epsilon(1) == pytest.approx(2.38, abs=0.01)
    geometric = figure.bounds_of(TruncatedNegativeBinomial(16, 1.0))
    assert geometric["simple"] == pytest.approx(3.98, abs=0.01)
    assert geometric["Renyi"] == pytest.approx(5.35, abs=0.01)
    assert geometric["smallest"] <= geometric["trade-off"] < geometric["simple"]
    poisson = figure.bounds_of(Poisson(16))
    assert poisson["simple"] == pytest.approx(6.35, abs=0.01)
    assert poisson["trade-off"] < poisson["Renyi with PLD"] < poisson["Renyi"]


def test_the_simple_bound_knows_no_floors():
    bounds = figure.bounds_of(figure.COUNTS["geometric, at least 2"](16))
    assert bounds["simple"] == math.inf
    assert bounds["smallest"] < 4
    assert "Renyi" not in bounds
