"""Searches along the posterior of the gradient, and the closed form of MPD."""

import math

import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm

from botorch_dp import FittedGIBO, MostProbableDescent
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.baselines.local.descent import (
    length_scale,
    most_probable_descent,
)
from tests.devices import seeded
from tests.optimizers.problems import DOUBLE, unit_box


def bowl(X):
    return (X - 0.3).square().sum(dim=-1)


def gaussian(d, seed):
    generator = seeded(seed)
    root = torch.randn(d, d, generator=generator, **DOUBLE)
    mean = torch.randn(d, generator=generator, **DOUBLE)
    return mean, root @ root.mT + 0.01 * torch.eye(d, **DOUBLE)


class TestDirection:
    @pytest.mark.parametrize("d", [1, 3])
    def test_maximizes_the_probability_over_the_sphere(self, d):
        mean, covariance = gaussian(d, d)
        direction, probability = most_probable_descent(mean, covariance)
        m, C = mean.cpu().numpy(), covariance.cpu().numpy()

        def failure(v):
            return -norm.cdf(-(v @ m) / math.sqrt(v @ C @ v))

        starts = torch.randn(3, d, generator=seeded(9), **DOUBLE).cpu().numpy()
        best = min(minimize(failure, v, tol=1e-12).fun for v in starts)
        found = direction.cpu().numpy()
        assert math.isclose(float(direction.norm()), 1.0, rel_tol=1e-12)
        assert math.isclose(-failure(found), float(probability), rel_tol=1e-9)
        assert float(probability) >= -best - 1e-6

    def test_is_the_gradient_where_all_directions_are_as_certain(self):
        mean = torch.tensor([3.0, 4.0], **DOUBLE)
        direction, _ = most_probable_descent(mean, torch.eye(2, **DOUBLE))
        assert torch.allclose(direction, -mean / 5)

    def test_nothing_is_known(self):
        mean = torch.zeros(2, **DOUBLE)
        direction, probability = most_probable_descent(mean, torch.eye(2, **DOUBLE))
        assert not direction.any()
        assert float(probability) == 0.5


@pytest.mark.default_device
class TestMostProbableDescent:
    def test_moves_while_descent_is_probable(self):
        opt = MostProbableDescent(unit_box(3), 1, 5, max_moves=200)
        opt.tell(bowl(opt.ask()))
        model = opt._model()
        posterior = model.gradient_posterior(opt._center.unsqueeze(0))
        _, probability = most_probable_descent(
            posterior.mean[0], posterior.covariance[0]
        )
        assert probability < 0.65
        assert bowl(opt.center) < bowl(opt.history[-1].x)

    def test_one_move_by_hand(self):
        opt = MostProbableDescent(unit_box(3), 1, 5, max_moves=1, step_size=0.2)
        opt.tell(bowl(opt.ask()))
        model, best = opt._model(), opt.history[-1].x
        posterior = model.gradient_posterior(best.unsqueeze(0))
        inverse = torch.linalg.inv(posterior.covariance[0])
        direction = -inverse @ posterior.mean[0]
        moved = best + 0.2 * length_scale(model) * direction / direction.norm()
        assert torch.allclose(opt.center, moved.clamp(0.0, 1.0), atol=1e-8)

    @pytest.mark.parametrize("threshold", [0.4, 1.0, 2.0])
    def test_a_threshold_is_a_probability(self, threshold):
        with pytest.raises(InvalidArgumentError, match="threshold"):
            MostProbableDescent(unit_box(2), 1, 5, threshold=threshold)


@pytest.mark.default_device
class TestFittedGIBO:
    def test_moves_by_the_length_of_a_step(self):
        opt = FittedGIBO(unit_box(3), 1, 5, step_size=0.05)
        start = opt.center
        opt.tell(bowl(opt.ask()))
        scale = float(length_scale(opt._model()))
        assert math.isclose(
            float((opt.center - start).norm()), 0.05 * scale, rel_tol=1e-6
        )
        gradient = 2 * (start - 0.3)
        cosine = torch.cosine_similarity(start - opt.center, gradient, dim=0)
        assert cosine > 0.99
