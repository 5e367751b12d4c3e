"""AdaGrad with steps shrunk by what is known of the noise."""

import math

import pytest
import torch

from botorch_dp import GDP
from botorch_dp.optimizers.gibo.sparse_updates import SparseAdagrad, shrinkage
from tests.devices import seeded
from tests.optimizers.problems import DEVICE, DOUBLE, Quadratics, make, same_state


class TestShrinkage:
    def test_by_hand(self):
        squares = torch.tensor([0.0, 3.9, 4.0, 16.0], **DOUBLE)
        found = shrinkage(squares, torch.full((4,), 4.0, **DOUBLE), 1.0)
        assert found.tolist() == [0.0, 0.0, 0.0, 0.75]

    def test_estimates_the_share_of_the_signal(self):
        # The signal of variance v and the noise of variance 1: the best factor is
        # v / (v + 1), up to the error of a mean of 10,000 squares (2 %).
        k, v = 10_000, torch.tensor([0.0, 1.0, 9.0], **DOUBLE)
        noise = torch.randn(k, 3, generator=seeded(), **DOUBLE)
        signal = torch.randn(k, 3, generator=seeded(1), **DOUBLE) * v.sqrt()
        squares = (signal + noise).square().sum(dim=0)
        found = shrinkage(squares, torch.full((3,), float(k), **DOUBLE), 1.0)
        assert torch.allclose(found, v / (v + 1), atol=0.03)


class TestSparseAdagrad:
    def test_is_adagrad_without_noise(self):
        with DEVICE:
            parameters = [torch.nn.Parameter(torch.ones(3, **DOUBLE)) for _ in "ab"]
            rules = [
                SparseAdagrad([parameters[0]], lr=0.1, initial_accumulator_value=0.3),
                torch.optim.Adagrad(
                    [parameters[1]], lr=0.1, initial_accumulator_value=0.3
                ),
            ]
            for step in range(5):
                gradient = torch.randn(3, generator=seeded(step), **DOUBLE)
                for parameter, rule in zip(parameters, rules, strict=True):
                    parameter.grad = gradient.clone()
                    rule.step()
        assert torch.allclose(*parameters)

    def test_coordinates_of_noise_hardly_move(self):
        # The first coordinate has a slope of 10 standard deviations, others none.
        with DEVICE:
            parameters = [torch.nn.Parameter(torch.zeros(50, **DOUBLE)) for _ in "ab"]
            rules = [
                SparseAdagrad([parameters[0]], lr=0.1, noise_std=1.0),
                torch.optim.Adagrad([parameters[1]], lr=0.1),
            ]
            for step in range(20):
                gradient = torch.randn(50, generator=seeded(step), **DOUBLE)
                gradient[0] += 10.0
                for parameter, rule in zip(parameters, rules, strict=True):
                    parameter.grad = gradient.clone()
                    rule.step()
        sparse, dense = (parameter.detach() for parameter in parameters)
        assert math.isclose(float(sparse[0]), float(dense[0]), rel_tol=0.05)
        assert sparse[1:].norm() < dense[1:].norm() / 2

    def test_counts_releases_only(self):
        with DEVICE:
            parameter = torch.nn.Parameter(torch.zeros(2, **DOUBLE))
            rule = SparseAdagrad([parameter], lr=0.1, noise_std=1.0)
            for _ in range(3):
                parameter.grad = torch.tensor([2.0, 0.0], **DOUBLE)
                rule.step()
        assert rule.state[parameter]["counts"].tolist() == [3.0, 0.0]
        assert parameter[1] == 0


class TestInDPGIBO:
    def test_knows_the_noise(self):
        opt = make(update="sparse-adagrad")
        opt.tell(Quadratics()(opt.ask()))
        (group,) = opt._follower.state_dict()["param_groups"]
        assert group["noise_std"] == opt.noise_std
        assert opt.settings()["update"] == "sparse-adagrad"

    def test_the_plan_sets_its_learning_rate(self):
        opts = [
            make(num_steps=None, clip_norm=None, loss_range=(0.0, 1.0), update=update)
            for update in ("adagrad", "sparse-adagrad")
        ]
        first, second = (opt.settings() for opt in opts)
        assert first["step_size"] == second["step_size"]
        assert first["initial_accumulator"] == second["initial_accumulator"]

    def test_costs_the_same(self):
        result = make(update="sparse-adagrad").run(Quadratics(), progress=False)
        assert result.certificate.guarantee.to_gdp().mu == pytest.approx(GDP(1.0).mu)

    def test_resumes(self):
        problem = Quadratics()
        whole, first = (make(update="sparse-adagrad") for _ in range(2))
        whole.run(problem, progress=False)
        first.tell(problem(first.ask()))
        second = make(update="sparse-adagrad")
        second.load_state_dict(first.state_dict())
        second.run(problem, progress=False)
        ours, theirs = (o.state_dict()["update"] for o in (whole, second))
        assert same_state(ours["param_groups"], theirs["param_groups"])
        assert torch.allclose(whole.x, second.x)
