"""The noise of the alternatives: closed forms, integrals, and neighbouring data."""

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from benchmarks.contenders.base import (
    DELTA,
    exponential_like,
    gaussian_mu,
    laplace_like,
    mean_noise,
    pure_epsilon,
)
from benchmarks.contenders.choices import choice_scale, choose, gumbel_like
from benchmarks.contenders.evolution import NUM_GENERATIONS, epsilon_of_a_generation
from benchmarks.contenders.noisy_bo import NoisyGP, noisy_means
from benchmarks.contenders.selection import (
    MEAN_COUNT,
    geometric_count,
    selection_scale,
    sparse_vector_scales,
)
from benchmarks.contenders.zeroth_order import clipped_mean, differences, step_noise
from benchmarks.problems.arena_tasks import make_task

pytestmark = pytest.mark.default_device  # benchmarks run on the CPU

EPSILONS = (0.1, 0.3, 1.0, 3.0)
n = 700


def gaussian_delta(mu, epsilon):
    cdf = NormalDist().cdf
    return cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * cdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_all_gaussian_releases_together_spend_the_budget(epsilon):
    for count, sensitivity, noise in [
        (30, 1 / n, mean_noise(30, n, epsilon)),
        (20, 2 * 1.5 / n, step_noise(1.5, 20, n, epsilon)),
    ]:
        mu = math.sqrt(count) * sensitivity / noise
        assert mu == pytest.approx(gaussian_mu(epsilon))
        assert gaussian_delta(mu, epsilon) == pytest.approx(DELTA, rel=1e-4)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_pure_release_implies_the_guarantee(epsilon):
    """Randomized response, the worst pure mechanism, has at most delta at epsilon."""
    pure = pure_epsilon(epsilon)
    p = math.exp(pure) / (1 + math.exp(pure))
    assert p - math.exp(epsilon) * (1 - p) <= DELTA * (1 + 1e-6)
    assert epsilon <= pure < epsilon + 1e-3


# The probability that the worse of two is chosen, for a gap in units of the scale.
WORSE = {
    exponential_like: lambda gap: math.exp(-gap) / 2,
    gumbel_like: lambda gap: 1 / (1 + math.exp(gap)),
    laplace_like: lambda gap: math.exp(-gap) * (2 + gap) / 4,
}


@pytest.mark.parametrize("noise", WORSE, ids=lambda noise: noise.__name__)
def test_choices_have_their_distribution(noise, generator):
    """5 standard errors of 4,000 draws; noise of half the scale is rejected."""
    means, draws = torch.tensor([0.5, 0.4], dtype=torch.float64), 4000

    def rate(scale):
        return sum(choose(means, scale, noise, generator) == 0 for _ in range(draws))

    expected = WORSE[noise](0.1 / 0.08)
    error = 5 * math.sqrt(expected * (1 - expected) / draws)
    assert rate(0.08) / draws == pytest.approx(expected, abs=error)
    assert rate(0.04) / draws < expected - error


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("noise", WORSE, ids=lambda noise: noise.__name__)
def test_choices_are_private(noise, epsilon):
    """One record moves a gap by up to 2 / n: up for one point, down for the other."""
    scale, probability = choice_scale(n, epsilon), WORSE[noise]
    for gap in (0.0, 0.5 / n, 3 / n, 40 / n):
        before, after = probability(gap / scale), probability((gap + 2 / n) / scale)
        assert math.log(before / after) <= epsilon * (1 + 1e-9)
        assert math.log((1 - after) / (1 - before)) <= epsilon * (1 + 1e-9)
    if noise is not laplace_like:  # these two bounds are reached
        far = probability(20) / probability(20 + 2 / n / scale)
        assert math.log(far) == pytest.approx(epsilon, rel=0.01)


def test_selection():
    # A mean with Laplace noise costs its sensitivity over the scale: a third.
    assert (1 / n) / selection_scale(n, 0.9) == pytest.approx(0.3)
    generator = torch.Generator().manual_seed(0)
    counts = np.array([geometric_count(generator) for _ in range(20_000)])
    assert counts.min() == 1
    assert counts.mean() == pytest.approx(MEAN_COUNT, rel=0.03)
    for k in (1, 2, 30):
        expected = (1 - 1 / MEAN_COUNT) ** (k - 1) / MEAN_COUNT
        error = 5 * math.sqrt(expected / 20_000)
        assert (counts == k).mean() == pytest.approx(expected, abs=error)


def laplace_cdf(x):
    return math.exp(x) / 2 if x < 0 else 1 - math.exp(-x) / 2


def first_to_pass(threshold, means, scales):
    """The probability that the last of the means is the first below the threshold."""
    on_threshold, on_mean = scales

    def density(z):
        at = threshold + on_threshold * z
        value = math.exp(-abs(z)) / 2 * laplace_cdf((at - means[-1]) / on_mean)
        for mean in means[:-1]:
            value *= 1 - laplace_cdf((at - mean) / on_mean)
        return value

    kinks = [0.0, *((mean - threshold) / on_threshold for mean in means)]
    edges = sorted({-60.0, *kinks, 60.0})
    return sum(
        quad(density, low, high, epsabs=0.0, epsrel=1e-8)[0]
        for low, high in pairwise(edges)
    )


def sparse_vector_loss(scales, move):
    """The largest privacy loss found over data sets that differ by 1 / n."""
    worst = 0.0
    for height in (-6, -2, 0, 2):
        for count in (1, 5, 60):
            means = [height / n * 2] * count
            # One record lowers the threshold, raises the means before the last one and
            # lowers that: all of it makes the outcome more likely, or less.
            other = [mean + move for mean in means[:-1]] + [means[-1] - move]
            for shift in (-move, move):
                ratio = first_to_pass(shift, other, scales) / first_to_pass(
                    0.0, means, scales
                )
                worst = max(worst, abs(math.log(ratio)))
    return worst


def test_sparse_vector_is_private():
    epsilon = 1.0
    scales = sparse_vector_scales(n, epsilon)
    assert scales == pytest.approx((4 / (n * epsilon), 8 / (n * epsilon)))
    assert sparse_vector_loss(scales, 1 / n) <= epsilon
    # The check has power: a third of the noise on the means is rejected.
    assert sparse_vector_loss((scales[0] / 3, scales[1] / 3), 1 / n) > epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_generations_compose(epsilon):
    one = epsilon_of_a_generation(epsilon)
    rho = NUM_GENERATIONS * one**2 / 8
    by_zcdp = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
    assert min(NUM_GENERATIONS * one, by_zcdp) == pytest.approx(epsilon)


def test_a_record_moves_a_clipped_mean_by_at_most_2c_over_n(generator):
    rows = torch.randn(50, 3, dtype=torch.float64, generator=generator)
    rows[0] = torch.tensor([1e6, 0.0, 0.0])
    other = rows.clone()
    other[0] = torch.tensor([-1e9, 0.0, 0.0])
    moved = (clipped_mean(rows, 0.7) - clipped_mean(other, 0.7)).norm()
    assert float(moved) == pytest.approx(2 * 0.7 / 50)
    small = 0.01 * rows[1:]
    assert clipped_mean(small, 0.7) == pytest.approx(small.mean(dim=0))


def test_differences_are_slopes():
    task = make_task("regression", 3, 40, seed=0)
    x = task.optimum
    axes = torch.eye(3, dtype=torch.float64)
    slopes = differences(task, x, 1e-3, axes)
    for k in range(3):
        up, down = task.losses(torch.stack([x + 1e-3 * axes[k], x - 1e-3 * axes[k]])).T
        assert slopes[:, k] == pytest.approx((up - down) / 2e-3)


def test_noisy_means_have_their_deviation(generator):
    task = make_task("cover", 4, 100, seed=0)
    X = task.start.expand(4000, -1)
    error = noisy_means(task, X, 0.3, generator) - task.mean(X[:1])
    assert float(error.std()) == pytest.approx(0.3, rel=0.06)
    assert abs(float(error.mean())) < 5 * 0.3 / math.sqrt(4000)


def test_the_process_is_a_gaussian_process(generator):
    X = torch.rand(6, 2, dtype=torch.float64, generator=generator)
    y = torch.rand(6, dtype=torch.float64, generator=generator)
    gp = NoisyGP(X, y, 0.1)
    new = torch.rand(4, 2, dtype=torch.float64, generator=generator)
    K = 0.25**2 * NoisyGP._matern(X, X) + (0.01 + 1e-8) * torch.eye(6).double()
    k = 0.25**2 * NoisyGP._matern(new, X)
    inverse = torch.linalg.inv(K)
    constant = inverse.sum(dim=0) @ y / inverse.sum()
    mean, std = gp.posterior(new)
    assert mean == pytest.approx(constant + k @ inverse @ (y - constant))
    variance = 0.25**2 - (k @ inverse @ k.T).diagonal()
    assert std.square() == pytest.approx(variance)
    best = float(gp.posterior(X)[0].min())
    draws = mean + std * torch.randn(100_000, 4, dtype=torch.float64)
    expected = (best - draws).clamp(min=0).mean(dim=0)
    assert gp.expected_improvement(new) == pytest.approx(expected, abs=2e-3)
