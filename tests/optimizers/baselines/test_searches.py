"""Baselines: the same interface, and certificates that say what they are."""

import math

import pytest
import torch

from botorch_dp import GDP, GIBO, GPUCB, NoisyGradientDescent, RandomSearch
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import Certificate
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


class TestNotPrivate:
    def cases(self):
        return [
            GIBO(unit_box(2), 100, 4),
            RandomSearch(unit_box(2), 100, 4, batch_size=3, generator=seeded()),
            GPUCB(unit_box(2), 100, 4, batch_size=3, generator=seeded()),
        ]

    @pytest.mark.default_device
    def test_certificates_say_so(self):
        problem = Quadratics(n=100, d=2)
        for opt in self.cases():
            certificate = opt.run(problem, progress=False).certificate
            assert not certificate.private
            assert str(certificate).startswith("NOT PRIVATE")
            assert certificate.guarantee is None
            assert Certificate.from_json(certificate.to_json()) == certificate

    def test_gibo_is_dp_gibo_without_noise(self):
        problem = Quadratics()
        kwargs = {"update": "sgd", "step_size": 0.3}
        exact = GIBO(unit_box(3), 200, 5, clip_norm=1.0, **kwargs)
        nearly = make(mu=1e9, **kwargs)
        x = exact.run(problem, progress=False).x
        assert torch.allclose(x, nearly.run(problem, progress=False).x, atol=1e-6)
        assert all(step.noise_std == 0.0 for step in exact.history)

    @pytest.mark.parametrize(
        "kwargs", [{"ledger": None}, {"secure": True}, {"guarantee": GDP(1.0)}]
    )
    def test_gibo_has_nothing_to_charge(self, kwargs):
        with pytest.raises(InvalidArgumentError, match="releases nothing"):
            GIBO(unit_box(2), 100, 4, **kwargs)

    def test_gibo_converges(self):
        problem = Quadratics()
        opt = GIBO(unit_box(3), 200, 40, update="sgd", step_size=0.5)
        x = opt.run(problem, progress=False).x
        assert torch.allclose(x, problem.records.mean(dim=0), atol=5e-3)

    def test_random_search_keeps_the_best(self):
        problem = Quadratics(n=100, d=2)
        opt = RandomSearch(unit_box(2), 100, 10, batch_size=5, generator=seeded())
        seen = []
        while not opt.done:
            X = opt.ask()
            seen.append(X)
            opt.tell(problem(X).split(30))
        X = torch.cat(seen)
        best = X[problem(X).mean(dim=0).argmin()]
        assert torch.equal(opt.result().x, best)
        assert opt.result().num_evaluations == 50

    @pytest.mark.default_device
    def test_gp_ucb_beats_random_search_on_a_quadratic(self):
        problem = Quadratics(n=100, d=2)
        optimum = problem.records.mean(dim=0)
        torch.manual_seed(0)
        ucb = GPUCB(unit_box(2), 100, 8, batch_size=2, generator=seeded())
        random = RandomSearch(unit_box(2), 100, 8, batch_size=2, generator=seeded())
        distances = [
            float((opt.run(problem, progress=False).x - optimum).norm())
            for opt in (ucb, random)
        ]
        assert distances[0] < distances[1]
