"""Expected scores of selected runs against brute force and simulation."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks import _selection_methods as methods
from botorch_dp.optimizers.selection.adaptive import GPProposals

pytestmark = pytest.mark.default_device


class TestBestOfWeights:
    @pytest.mark.parametrize("count", [1, 2, 4, 5])
    def test_is_the_mean_over_all_subsets(self, count):
        weights = methods.best_of_weights(methods.exactly(count), 5)
        subsets = list(itertools.combinations(range(5), count))
        expected = [sum(max(s) == i for s in subsets) / len(subsets) for i in range(5)]
        np.testing.assert_allclose(weights, expected, atol=1e-12)

    def test_more_runs_than_the_pool_has_count_as_all_of_it(self):
        np.testing.assert_allclose(
            methods.best_of_weights(methods.exactly(9), 3), [0.0, 0.0, 1.0]
        )

    def test_adds_up_to_the_probability_of_a_run(self):
        weights = methods.best_of_weights(np.array([0.25, 0.5, 0.125]), 40)
        assert weights.sum() == pytest.approx(0.75)

    def test_missing_tails_count_as_the_whole_pool(self):
        weights = methods.best_of_weights(np.array([0.0, 0.5]), 2)
        np.testing.assert_allclose(weights, [0.25, 0.75])


class TestBestOf:
    def test_follows_the_scores_not_the_values(self):
        scores = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
        values = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
        best = methods.best_of(
            methods.exactly(3), scores, values, noise_std=0.0, seed=0
        )
        assert best == 2.0

    def test_large_noise_makes_the_choice_random(self):
        scores = torch.arange(4, dtype=torch.float64)
        best = methods.best_of(
            methods.exactly(4), scores, scores, noise_std=1e6, seed=0
        )
        # The standard error of 200 draws from 0, 1, 2, 3 is 0.08.
        assert best == pytest.approx(1.5, abs=0.32)

    def test_no_run_releases_the_default(self):
        one = torch.ones(1, dtype=torch.float64)
        best = methods.best_of(
            np.array([0.5, 0.5]), one, one, noise_std=0.0, seed=0, default=0.2
        )
        assert best == pytest.approx(0.6)

    def test_agrees_with_simulation(self):
        random = np.random.default_rng(0)
        scores = torch.from_numpy(random.random(30))
        values = torch.from_numpy(random.random(30))
        probabilities = np.array([0.0, 0.3, 0.3, 0.0, 0.4])
        simulated = []
        for _ in range(5_000):
            count = random.choice(5, p=probabilities)
            chosen = random.permutation(30)[:count]
            simulated.append(float(values[chosen[scores[chosen].argmax()]]))
        exact = methods.best_of(probabilities, scores, values, noise_std=0.0, seed=0)
        error = np.std(simulated) / np.sqrt(len(simulated))
        assert exact == pytest.approx(np.mean(simulated), abs=4 * error)


class TestComposedSearch:
    def test_finds_a_peak_sooner_than_chance(self):
        points = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
        scores = -(points[:, 0] - 0.7).square()
        found = methods.composed_search(
            10, points, scores, scores, noise_std=0.0, seed=0
        )
        chance = methods.best_of(
            methods.exactly(10), scores, scores, noise_std=0.0, seed=0
        )
        assert found > 0.5 * chance  # both are negative

    def test_tries_no_setting_twice(self):
        points = torch.linspace(0, 1, 24, dtype=torch.float64).view(12, 2)
        scores = torch.arange(12, dtype=torch.float64)
        found = methods.composed_search(
            12, points, scores, scores, noise_std=0.0, seed=0
        )
        assert found == 11.0


class TestProposedSearch:
    def test_uniform_proposals_agree_with_the_formula(self, monkeypatch):
        """With replacement: the i-th of n is the best of two with (2 i - 1) / n^2."""
        monkeypatch.setattr(methods, "NUM_SELECTIONS", 1000)
        values = torch.arange(1, 6, dtype=torch.float64)
        proposals = methods.UniformProposals()
        proposals.start(5, None)
        found = methods.proposed_search(
            methods.exactly(2), proposals, values, values, noise_std=0.0, seed=0
        )
        ranks = np.arange(1, 6)
        chances = (2 * ranks - 1) / 25
        spread = np.sqrt(chances @ ranks**2 - (chances @ ranks) ** 2)
        assert found == pytest.approx(chances @ ranks, abs=4 * spread / np.sqrt(1000))

    def test_good_proposals_find_more(self):
        points = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
        scores = -(points[:, 0] - 0.7).abs()
        found = []
        for proposals in (methods.UniformProposals(), GPProposals((0.05, 20.0))):
            proposals.start(40, points)
            found.append(
                methods.proposed_search(
                    methods.exactly(6),
                    proposals,
                    scores,
                    scores,
                    noise_std=0.0,
                    seed=0,
                )
            )
        assert found[1] > 0.8 * found[0]  # both are negative

    def test_no_run_has_no_value(self):
        proposals = methods.UniformProposals()
        proposals.start(2, None)
        one = torch.ones(2, dtype=torch.float64)
        found = methods.proposed_search(
            methods.exactly(0), proposals, one, one, noise_std=0.0, seed=0
        )
        assert found == 0.0


def test_the_model_interpolates():
    points = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 3)]).double()
    scores = torch.sin(5 * points[:, 0]) + points[:, 1]
    mean, std = methods.model_of_scores(points, points, scores)
    expected = (scores - scores.mean()) / scores.std()
    torch.testing.assert_close(mean, expected, atol=1e-2, rtol=0)
    assert float(std.max()) < 0.05
