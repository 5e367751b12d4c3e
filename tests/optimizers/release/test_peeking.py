"""Where to evaluate next: expected improvement and posterior samples."""

import mpmath
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel
from scipy import stats

from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.release.peeking import (
    ThompsonPoints,
    log_expected_improvement,
    point_of_improvement,
    point_of_upper_bound,
)
from tests.optimizers.problems import DEVICE, DOUBLE, seeded


def make_posterior(count=12, observed=((2, 0.8), (7, -0.5)), noise=0.05):
    with DEVICE:
        kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
        kernel.lengthscale = 0.3
    X = torch.linspace(0, 1, count, **DOUBLE).unsqueeze(-1)
    posterior = CandidatePosterior(kernel, X, noise_variance=noise, max_observations=5)
    for index, value in observed:
        posterior.observe(index, value)
    return posterior, kernel, X


class TestExpectedImprovement:
    @pytest.mark.parametrize(
        "u", [-1e6, -2e3, -999.0, -40.0, -5.0, -1e-3, 0.0, 1e-3, 2.0, 30.0]
    )
    @pytest.mark.parametrize("std", [1e-3, 2.0])
    def test_in_high_precision(self, u, std):
        with mpmath.workdps(60):
            x = mpmath.mpf(u)
            cdf = mpmath.erfc(-x / mpmath.sqrt(2)) / 2
            exact = float(mpmath.log(std * (mpmath.npdf(x) + x * cdf)))
        mean = torch.tensor([0.25 + u * std], **DOUBLE)
        found = log_expected_improvement(mean, torch.tensor([std], **DOUBLE), 0.25)
        assert float(found) == pytest.approx(exact, rel=1e-6)

    def test_without_variance(self):
        mean = torch.tensor([-1.0, 0.0, 1.0], **DOUBLE)
        found = log_expected_improvement(mean, torch.zeros(3, **DOUBLE), 0.0)
        assert not found.isnan().any()
        assert found.argmax() == 2

    def test_the_textbook_formula_agrees_on_the_point(self):
        posterior, _, _ = make_posterior(count=200)
        best = float(posterior.mean[[2, 7]].max())
        std = posterior.variance.sqrt()
        u = (posterior.mean - best) / std
        normal = torch.distributions.Normal(*torch.tensor([0.0, 1.0], **DOUBLE))
        improvement = std * (normal.log_prob(u).exp() + u * normal.cdf(u))
        found = point_of_improvement(posterior, [2, 7], [2, 7])
        assert found == int(improvement.argmax())

    def test_never_twice(self):
        posterior, _, _ = make_posterior()
        evaluated = [2, 7]
        while len(evaluated) < 12:
            evaluated.append(point_of_improvement(posterior, [2, 7], evaluated))
        assert len(set(evaluated)) == 12


def test_upper_bound():
    posterior, _, _ = make_posterior(count=50)
    bound = posterior.mean + 3.0 * posterior.variance.sqrt()
    assert point_of_upper_bound(posterior, 9.0, []) == int(bound.argmax())
    evaluated = []
    for _ in range(50):
        evaluated.append(point_of_upper_bound(posterior, 9.0, evaluated))
    assert sorted(evaluated) == list(range(50))


class TestThompson:
    def test_follows_the_posterior(self):
        # The frequencies of the best candidates of exact posterior samples.
        posterior, kernel, X = make_posterior()
        points = ThompsonPoints(posterior, 5, beta=2.0)
        found = [points.next([0.1 * seed], []) for seed in range(3000)]
        D = X[[2, 7]]
        K = kernel(D).to_dense() + 0.05 * torch.eye(2, **DOUBLE)
        cross = kernel(X, D).to_dense()
        mean = cross @ torch.linalg.solve(K, torch.tensor([0.8, -0.5], **DOUBLE))
        covariance = kernel(X).to_dense() - cross @ torch.linalg.solve(K, cross.mT)
        root = torch.linalg.cholesky(covariance + 1e-10 * torch.eye(12, **DOUBLE))
        normal = torch.randn(12, 100_000, generator=seeded(), **DOUBLE)
        exact = (mean.unsqueeze(-1) + root @ normal).argmax(dim=0)
        expected = np.bincount(exact.cpu().numpy(), minlength=12) / 100_000 * 3000
        counts = np.bincount(found, minlength=12)
        common = expected > 5
        assert common.sum() > 3
        assert (
            stats.chisquare(
                counts[common],
                expected[common] / expected[common].sum() * counts[common].sum(),
            ).pvalue
            > 1e-3
        )

    def test_the_same_public_numbers_give_the_same_point(self):
        posterior, _, _ = make_posterior()
        one, other = (ThompsonPoints(posterior, 5, beta=2.0) for _ in range(2))
        values = [[0.3, None], [0.3, 0.1], [0.3]]
        assert [one.next(v, [1]) for v in values] == [
            other.next(v, [1]) for v in values
        ]

    def test_never_twice(self):
        posterior, _, _ = make_posterior()
        points, evaluated = ThompsonPoints(posterior, 12, beta=2.0), []
        while len(evaluated) < 12:
            evaluated.append(points.next([0.5], evaluated))
        assert len(set(evaluated)) == 12

    def test_among_the_largest_bounds(self):
        posterior, _, _ = make_posterior(count=1500)
        points = ThompsonPoints(posterior, 5, beta=4.0)
        bound = posterior.mean + 2 * posterior.variance.sqrt()
        least = bound.sort(descending=True).values[999]
        assert (bound[points._among] >= least).all()
        assert len(points._among) == 1000
        assert len(ThompsonPoints(posterior, 700, beta=4.0)._among) == 1400
