"""Private gradient descent on true gradients."""

import math

import pytest
import torch

from botorch_dp import GDP, NoisyGradientDescent
from botorch_dp.exceptions import InvalidArgumentError
from tests.optimizers.problems import DOUBLE, Quadratics, make, seeded, unit_box


class TestNoisyGradientDescent:
    def test_by_hand(self):
        problem, n, T, B, mu, eta = Quadratics(n=50), 50, 4, 0.4, 2.0, 0.3
        opt = NoisyGradientDescent(
            unit_box(3),
            n,
            GDP(mu),
            T,
            B,
            update="sgd",
            step_size=eta,
            generator=seeded(7),
        )
        noise, theta = seeded(7), opt.x
        for _ in range(T):
            X = opt.ask()
            assert torch.allclose(X[0], theta, atol=1e-12)
            G = problem.gradients(theta)
            g = (G * (B / G.norm(dim=-1, keepdim=True)).clamp(max=1.0)).mean(dim=0)
            w = torch.randn(3, generator=noise, **DOUBLE)
            theta = theta - eta * (g + 2 * B * math.sqrt(T) / (n * mu) * w)
            theta = theta.clamp(0.0, 1.0)
            opt.tell(problem.gradients(X[0]))
            assert torch.allclose(opt.x, theta, atol=1e-12)

    def test_gradients_follow_the_coordinates(self):
        # f = (log10 x + 1)^2 / 2: in search coordinates (0..1 for 1e-4..1e2) its
        # derivative is 6 (log10 x + 1).
        bounds = torch.tensor([[1e-4], [1e2]], **DOUBLE)
        start = torch.ones(1, **DOUBLE)

        def gradients(X):
            x = X.reshape(1, 1)
            return ((x.log10() + 1) / (x * math.log(10))).expand(10, 1)

        opt = NoisyGradientDescent(
            bounds,
            10,
            GDP(1e9),
            1,
            1e3,
            transform="log",
            update="sgd",
            step_size=0.01,
            initial_x=start,
            generator=seeded(),
        )
        opt.tell(gradients(opt.ask()))
        moved = opt.search_box.to_search(opt.x) - opt.search_box.to_search(start)
        assert math.isclose(float(moved), -0.06, rel_tol=1e-4)

    def test_losses_in_place_of_gradients(self):
        opt = make(cls=NoisyGradientDescent)
        with pytest.raises(InvalidArgumentError, match="the gradient of each record"):
            opt.tell(Quadratics()(opt.ask()))
