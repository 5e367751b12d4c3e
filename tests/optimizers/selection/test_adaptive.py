"""Proposals: within their limits whatever the history, and an exact projection."""

import math
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from scipy import optimize, stats

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.selection import adaptive
from botorch_dp.optimizers.selection.adaptive import (
    GPProposals,
    Proposals,
    bounded_density,
    draw_from,
    draw_index,
    proposal_density,
)
from botorch_dp.privacy import (
    AtLeast,
    PoissonGaussianEvent,
    SelectionEvent,
    TruncatedNegativeBinomial,
)

RATIOS = st.tuples(st.floats(1e-3, 0.999), st.floats(1.001, 100.0))


def grid(num=9):
    points = torch.linspace(0, 1, num, dtype=torch.float64, device="cpu")
    return points.unsqueeze(-1)


def started(ratios=(0.5, 2.0), **kwargs):
    proposals = GPProposals(ratios, **kwargs)
    proposals.start(9, grid())
    return proposals


class Rule(Proposals):
    """Returns what it is told to, after the trials."""

    def __init__(self, answer, **kwargs):
        super().__init__(**kwargs)
        self.answer, self.is_trial = answer, True

    def log_weights(self, private_history):
        if self.is_trial:
            return torch.zeros(self._num_candidates, device="cpu")
        if isinstance(self.answer, Exception):
            warnings.warn("about private scores", stacklevel=2)
            raise self.answer
        return self.answer


class TestDensity:
    @given(
        st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40),
        RATIOS,
    )
    @settings(max_examples=300)
    def test_within_the_limits_for_any_weights(self, logs, ratios):
        weights = torch.tensor(logs, dtype=torch.float64, device="cpu")
        density = bounded_density(weights, ratios)
        # The probabilities that draw_from uses, relative to uniform ones.
        relative = density / density.sum() * len(density)
        assert float(relative.min()) >= ratios[0]
        assert float(relative.max()) <= ratios[1]
        assert float(density.mean()) == pytest.approx(1.0, abs=1e-9)

    @given(st.lists(st.floats(-8, 8), min_size=2, max_size=30), RATIOS)
    @settings(max_examples=100)
    def test_is_the_projection(self, logs, ratios):
        # Against a root of the mean in log lambda, found by bisection.
        weights = np.array(logs)
        low, high = (ratio + 1e-6 * (1 - ratio) for ratio in ratios)

        def excess(log_lambda):
            return np.clip(np.exp(log_lambda + weights), low, high).mean() - 1

        root = optimize.brentq(excess, -30.0, 30.0, xtol=1e-13)
        expected = np.clip(np.exp(root + weights), low, high)
        tensor = torch.tensor(logs, dtype=torch.float64, device="cpu")
        found = bounded_density(tensor, ratios).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-7)

    def test_order_is_kept_and_constants_do_not_matter(self):
        logs = torch.tensor([3.0, 0.0, 1.0, -2.0], dtype=torch.float64, device="cpu")
        density = bounded_density(logs, (0.2, 3.0))
        assert density.argsort().tolist() == logs.argsort().tolist()
        assert torch.allclose(bounded_density(logs + 700, (0.2, 3.0)), density)

    def test_enormous_differences(self):
        logs = torch.tensor([0.0, 1e300, 5.0], dtype=torch.float64, device="cpu")
        density = bounded_density(logs, (0.5, 1.9))
        assert density.tolist() == pytest.approx([0.55, 1.9, 0.55], rel=1e-4)

    def test_a_density_whose_mean_is_not_one_is_not_used(self, monkeypatch):
        logs = torch.tensor([3.0, 0.0], dtype=torch.float64, device="cpu")
        assert bounded_density(logs, (0.5, 2.0)).tolist() != [1.0, 1.0]
        monkeypatch.setattr(adaptive, "_ROUNDING", -1.0)  # as if none were good enough
        assert bounded_density(logs, (0.5, 2.0)).tolist() == [1.0, 1.0]

    def test_no_limits_to_move_in(self):
        logs = torch.tensor([3.0, 0.0], dtype=torch.float64, device="cpu")
        assert bounded_density(logs, (1.0, 1.0)).tolist() == [1.0, 1.0]

    def test_draws(self):
        rule = Rule(torch.tensor([0.0, 1.0, 5.0], device="cpu"), ratios=(0.4, 1.5))
        rule.start(3, None)
        rule.is_trial = False
        density = rule.density([])
        uniform = (np.arange(300) + 0.5) / 300
        drawn = [draw_from(density, u) for u in uniform]
        counts = np.bincount(drawn, minlength=3) / 100
        np.testing.assert_allclose(counts, density.numpy(), atol=2e-2)
        assert draw_from(density, 2.0**-64) == 0
        assert draw_index(rule, [], 0.5) == draw_from(density, 0.5)
        assert draw_from(density, 1 - 2.0**-53) == 2


class TestHistoriesNeverShow:
    @given(
        st.lists(st.tuples(st.integers(0, 8), st.floats(allow_nan=False)), max_size=12),
    )
    @settings(max_examples=100)
    def test_any_history(self, history):
        proposals = started(ratios=(0.5, 2.0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            density = proposals.density(history)
        relative = density / density.sum() * len(density)
        assert float(relative.min()) >= 0.5
        assert float(relative.max()) <= 2.0

    @pytest.mark.parametrize(
        "answer",
        [
            ValueError("private"),
            torch.tensor([0.0, math.nan, 1.0], device="cpu"),
            torch.tensor([0.0, math.inf, 1.0], device="cpu"),
            torch.zeros(2, device="cpu"),
            "weights",
        ],
    )
    def test_a_rule_that_fails_is_uniform_and_silent(self, answer):
        rule = Rule(answer)
        rule.start(3, None)
        rule.is_trial = False
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert rule.density([(0, 1.0)]).tolist() == [1.0, 1.0, 1.0]
        assert not caught

    def test_the_limits_that_were_paid_for_are_kept(self):
        # Whatever the rule says of itself in the meantime.
        rule = Rule(torch.tensor([0.0, 9.0, 0.0], device="cpu"), ratios=(0.5, 2.0))
        rule.start(3, None)
        rule.is_trial, rule.ratios = False, (0.01, 2.99)
        density = proposal_density(rule, [], size=3, ratios=(0.5, 2.0))
        assert float(density.max()) <= 2.0

    def test_a_wrong_rule_is_found_before_any_history(self):
        rule = Rule(torch.zeros(2, device="cpu"))
        rule.is_trial = False
        with pytest.raises(InvalidArgumentError, match="log_weights must return"):
            rule.start(3, None)

    def test_nothing_is_kept(self):
        proposals = started()
        before = {key: repr(value) for key, value in vars(proposals).items()}
        proposals.density([(0, 0.123456), (3, 0.7), (5, 0.2)])
        assert {key: repr(value) for key, value in vars(proposals).items()} == before
        assert "0.123456" not in repr(proposals)


class TestGaussianProcess:
    def test_follows_the_scores(self):
        proposals = started(ratios=(0.2, 4.0), beta=0.1)
        density = proposals.density([(0, 0.1), (8, 0.9), (4, 0.5)])
        assert int(density.argmax()) == 8
        assert float(density[8]) == pytest.approx(4.0, rel=1e-4)
        assert float(density[0]) == pytest.approx(0.2, rel=1e-4)

    def test_the_scale_of_scores_does_not_matter(self):
        proposals = started()
        history = [(0, 0.1), (8, 0.9), (4, 0.5)]
        moved = [(i, 1e3 * score - 7e4) for i, score in history]
        assert torch.allclose(
            proposals.density(history), proposals.density(moved), rtol=1e-6
        )

    def test_first_runs_are_uniform(self):
        proposals = started(num_uniform=3)
        density = proposals.density([(0, 0.1), (8, 0.9)])
        assert density.tolist() == pytest.approx([1.0] * 9)
        density = proposals.density([(0, 0.1), (8, 0.9), (8, 0.8)])
        assert density.tolist() != pytest.approx([1.0] * 9)

    def test_against_the_closed_form(self):
        # Two observations, an RBF kernel, by hand.
        with torch.device("cpu"):
            kernel = RBFKernel().to(grid())
            kernel.lengthscale = 0.4
        kernel.requires_grad_(False)
        proposals = started(
            kernel=kernel, noise_variance=0.2, beta=0.7, temperature=0.5
        )
        found = proposals.log_weights([(1, 2.0), (6, 3.0)]).numpy()
        z = np.linspace(0, 1, 9)

        def k(a, b):
            return np.exp(-((a[:, None] - b[None]) ** 2) / (2 * 0.4**2))

        observed = z[[1, 6]]
        solved = np.linalg.solve(
            k(observed, observed) + 0.2 * np.eye(2), k(observed, z)
        )
        mean = np.array([-1.0, 1.0]) @ solved  # standardized by hand
        variance = 1 - (k(z, observed).T * solved).sum(axis=0)
        expected = (mean + 0.7 * np.sqrt(variance)) / 0.5
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)

    def test_draws_more_often_where_scores_are_high(self):
        proposals = started(ratios=(0.25, 2.5), beta=0.1)
        history = [(0, 0.1), (8, 0.9), (4, 0.5)]
        density = proposals.density(history)
        uniform = stats.uniform.rvs(size=300, random_state=1)
        drawn = np.array([draw_from(density, u) for u in uniform])
        # Uniform draws would average 4; the standard error is about 0.15.
        assert drawn.mean() > 4.8


def test_the_costs_in_the_docstring():
    run = ((PoissonGaussianEvent(1.1, 256 / 60_000), 14_062),)
    for mean, ratios, expected in (
        (16, (1.0, 1.0), 3.8),
        (16, (0.9, 1.1), 4.3),
        (16, (0.5, 2.0), 7.8),
        (64, (1.0, 1.0), 4.5),
    ):
        count = AtLeast(TruncatedNegativeBinomial(mean - 1, 1.0), 2)
        epsilon = SelectionEvent(run, count, ratios).epsilon_at(1e-5)
        assert round(epsilon, 1) == expected
        assert f"{expected:g}" in GPProposals.__doc__


class TestArguments:
    @pytest.mark.parametrize(
        "ratios", [(0.0, 2.0), (1.0, 1.0), (0.5, 1.0), (2.0, 0.5), (0.5, math.inf), 3]
    )
    def test_ratios(self, ratios):
        with pytest.raises(InvalidArgumentError, match="ratios must be"):
            GPProposals(ratios)

    def test_a_list_of_anything(self):
        with pytest.raises(InvalidArgumentError, match="has no distances"):
            GPProposals((0.5, 2.0)).start(3, None)

    @pytest.mark.parametrize("name", ["noise_variance", "beta", "temperature"])
    def test_positive(self, name):
        with pytest.raises(InvalidArgumentError, match=name):
            GPProposals((0.5, 2.0), **{name: 0.0})
