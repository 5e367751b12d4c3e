"""DP-GIBO against brute force: surrogate, step, designs, chunks."""

import copy
import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel

from botorch_dp import DPGIBO, GDP, GradientGP, PureDP
from botorch_dp.exceptions import (
    InvalidArgumentError,
    UnsupportedKernelError,
)
from botorch_dp.models.gradient_weights import gradient_weights
from tests.optimizers.problems import DEVICE, DOUBLE, Quadratics, make, seeded, unit_box


def released_mean(opt, losses):
    """Run one tell, and return what the mechanism was given (private: a test may)."""
    seen = []
    release = opt._release

    def spy(private_mean):
        seen.append(private_mean.clone())
        return release(private_mean)

    opt._release = spy
    opt.tell(losses)
    del opt._release
    return seen[0]


class TestSurrogate:
    def test_gradients_are_posterior_means(self):
        # Zero mean: the posterior mean of a GradientGP fitted to each record's losses.
        problem = Quadratics(n=4)
        opt = make(n=4, mean="zero", clip_norm=1e6, noise_variance=1e-4)
        for _ in range(3):
            theta, X = opt.x, opt.ask()
            D = torch.cat([opt._points, X])
            gradients = [
                GradientGP(D, losses.unsqueeze(-1), opt.geometry.kernel, 1e-4)
                .gradient_posterior(theta.unsqueeze(0))
                .mean[0]
                for losses in problem(D)
            ]
            mean = released_mean(opt, problem(X))
            assert torch.allclose(mean, torch.stack(gradients).mean(dim=0), rtol=1e-7)

    def test_a_constant_mean_is_estimated_for_each_record(self):
        # Generalized least squares, record by record, then the residuals' posterior.
        problem = Quadratics(n=4)
        shifts = torch.tensor([0.0, 100.0, -3.0, 7.0], **DOUBLE).unsqueeze(-1)
        opt = make(n=4, clip_norm=1e6, noise_variance=1e-3)
        for _ in range(2):
            theta, X = opt.x, opt.ask()
            D = torch.cat([opt._points.to(X), X])
            losses = problem(D) + shifts
            kernel = copy.deepcopy(opt.geometry.kernel).to(X)
            K = kernel(D).to_dense() + 1e-3 * torch.eye(len(D), **DOUBLE)
            ones = torch.ones(len(D), **DOUBLE)
            weight = torch.linalg.solve(K, ones)
            gradients = []
            for row in losses:
                residual = row - (weight @ row) / weight.sum()
                model = GradientGP(D, residual.unsqueeze(-1), kernel, 1e-3)
                gradients.append(model.gradient_posterior(theta.unsqueeze(0)).mean[0])
            mean = released_mean(opt, problem(X) + shifts)
            expected = torch.stack(gradients).mean(dim=0)
            assert torch.allclose(mean.to(X), expected, rtol=1e-6, atol=1e-9)

    def test_a_record_s_level_does_not_matter(self):
        problem = Quadratics()
        means = []
        for shift in (0.0, 1e3):
            opt = make()
            means.append(released_mean(opt, problem(opt.ask()) + shift))
        assert torch.allclose(*means, atol=1e-7)

    def test_near_the_true_gradient(self):
        problem = Quadratics()
        opt = make(clip_norm=1e3)
        for _ in range(3):
            true = problem.gradients(opt.x).mean(dim=0)
            mean = released_mean(opt, problem(opt.ask()))
            assert (mean - true).norm() < 0.01 * true.norm() + 1e-3

    def test_exact_for_quadratics_with_the_polynomial_kernel(self):
        # Paper, 4.1: after enough points the quadratic is known.
        problem = Quadratics(d=2)
        with DEVICE:
            kernel = PolynomialKernel(power=2, offset=1.0).double()
        opt = make(
            d=2,
            kernel=kernel,
            batch_size=2,
            num_steps=6,
            noise_variance=1e-8,
            mean="zero",
            clip_norm=1e3,
            window=100,
        )
        errors = []
        for _ in range(6):
            true = problem.gradients(opt.x).mean(dim=0)
            errors.append(float((released_mean(opt, problem(opt.ask())) - true).norm()))
        assert opt.geometry.search == "optimize"
        assert errors[-1] < 1e-4 < errors[0]


class TestStep:
    def test_algorithm_1_by_hand(self):
        problem, n, T, B, mu, eta = Quadratics(n=50), 50, 3, 0.4, 2.0, 0.3
        opt = make(
            n=n, num_steps=T, clip_norm=B, mu=mu, update="sgd", step_size=eta, seed=7
        )
        noise = seeded(7)
        theta = opt.x
        for _ in range(T):
            X = opt.ask()
            D = torch.cat([opt._points.to(X), X])
            kernel = copy.deepcopy(opt.geometry.kernel).to(X)
            found = gradient_weights(
                kernel, theta, D, noise_variance=1e-6, constant_mean=True
            )
            G = problem(D) @ found.weights.mT
            norms = G.norm(dim=-1, keepdim=True)
            g = (G * (B / norms).clamp(max=1.0)).mean(dim=0)
            w = torch.randn(3, generator=noise, **DOUBLE)
            theta = theta - eta * (g + 2 * B * math.sqrt(T) / (n * mu) * w)
            theta = theta.clamp(0.0, 1.0)
            opt.tell(problem(X))
            assert torch.allclose(opt.x, theta, atol=1e-9)
        assert opt.done
        assert torch.equal(opt.result().x, opt.x)

    def test_finds_the_optimum(self):
        problem = Quadratics(n=5000, d=5)
        start = torch.full((5,), 0.05, **DOUBLE)
        opt = make(d=5, n=5000, num_steps=30, initial_x=start)
        result = opt.run(problem, progress=False)
        optimum = problem.records.mean(dim=0)
        # Noise of 0.002 a coordinate and step.
        assert (result.x - optimum).norm() < 0.05
        assert (result.average - optimum).norm() < 0.05
        assert result.num_evaluations == 180

    def test_in_logarithmic_coordinates(self):
        # Losses of log x: quadratic in search coordinates, minimal at x = 0.1.
        bounds = torch.tensor([[1e-4], [1e2]], **DOUBLE)

        def losses(X):
            return (X.log10() + 1.0).square().mT.expand(1000, -1) / 10

        opt = make(n=1000, bounds=bounds, transform="log", num_steps=30, clip_norm=2.0)
        result = opt.run(losses, progress=False)
        assert abs(float(result.x.log10()) + 1.0) < 0.1

    def test_dtype_follows_the_bounds(self, tkwargs):
        problem = Quadratics(**tkwargs)
        opt = make(bounds=unit_box(3, **tkwargs), noise_variance=1e-3)
        result = opt.run(problem, progress=False)
        assert result.x.dtype == tkwargs["dtype"]
        assert all(step.x.dtype == tkwargs["dtype"] for step in result.history)

    def test_float32_losses_are_taken(self):
        problem = Quadratics()
        opt = make()
        opt.tell(problem(opt.ask()).float())
        assert opt.x.dtype == torch.float64


class TestChunks:
    @staticmethod
    def chunked(problem, sizes):
        def chunks(X):
            yield from problem(X).split(sizes)

        return chunks

    def test_chunks_give_the_same_run(self):
        problem = Quadratics()
        whole = make(num_steps=4)
        whole.run(problem, progress=False)
        for tell in (
            lambda opt, X: opt.tell(self.chunked(problem, [50, 149, 1])),
            lambda opt, X: opt.tell(problem(X).split(64)),
            # Now and then: losses that were told in chunks are asked for again.
            lambda opt, X: opt.tell(
                problem(X).split(64) if len(opt.history) % 2 else problem(X)
            ),
        ):
            opt = make(num_steps=4)
            while not opt.done:
                tell(opt, opt.ask())
            assert torch.allclose(opt.x, whole.x, atol=1e-9)

    def test_a_generator_as_objective(self):
        problem = Quadratics()
        result = make(num_steps=2).run(self.chunked(problem, 70), progress=False)
        expected = make(num_steps=2).run(problem, progress=False)
        assert torch.allclose(result.x, expected.x, atol=1e-9)

    def test_chunks_are_not_kept(self):
        problem = Quadratics()
        opt = make(num_steps=3)
        opt.ask()
        opt.tell(self.chunked(problem, 50))
        assert opt._losses._buffer is None
        assert len(opt.ask()) == 8  # the four points seen once more, and four new ones

    def test_nothing_is_kept_in_the_end(self):
        opt = make(num_steps=2)
        opt.run(Quadratics(), progress=False)
        assert opt._losses._buffer is None


class TestMisuse:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"guarantee": PureDP(1.0)}, "Gaussian noise can meet"),
            ({"guarantee": 1.0}, "must be a GDP"),
            ({"guarantee": GDP(1.0), "secure": True, "generator": None}, "ApproxDP"),
            ({"bounds": unit_box(3).flip(0)}, "lower bound below"),
            ({"n": 0}, "num_records"),
            ({"num_steps": 0}, "num_steps"),
            ({"clip_norm": 0.0}, "clip_norm"),
            ({"batch_size": 0}, "batch_size"),
            ({"batch_size": 3, "tolerance": 1.0}, "exclude each other"),
            ({"noise_variance": -1.0}, "noise_variance"),
            ({"mean": "linear"}, "mean must be one of"),
            ({"window": -1}, "window"),
            ({"batch_size": 1}, "batch_size"),
            ({"ledger": "ledger.db"}, "ledger must be"),
            ({"update": torch.optim.LBFGS}, "without a closure"),
            ({"update": lambda *args, **kwargs: 3}, "torch.optim class"),
            ({"search": "grid"}, "search must be one of"),
            ({"update": "newton"}, "update must be one of"),
            ({"update": 3}, "torch.optim class"),
            ({"step_size": 0.0}, "step_size"),
            ({"initial_x": torch.full((3,), 2.0, **DOUBLE)}, "initial_x"),
            ({"initial_x": torch.zeros(2, **DOUBLE)}, "initial_x"),
            ({"transform": "sqrt"}, "transform"),
            ({"kernel": "rbf"}, "kernel must be a gpytorch"),
        ],
    )
    def test_arguments(self, kwargs, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(**kwargs)

    def test_kernels(self):
        with DEVICE:
            rough, polynomial = MaternKernel(nu=0.5), PolynomialKernel(power=2)
        with pytest.raises(UnsupportedKernelError, match=r"nu=0\.5"):
            make(kernel=rough)
        with pytest.raises(InvalidArgumentError, match="search must be 'optimize'"):
            make(kernel=polynomial, search="design")
        with pytest.raises(InvalidArgumentError, match="closed form"):
            make(kernel=polynomial, tolerance=1.0)
        with DEVICE:
            batched = RBFKernel(batch_shape=torch.Size([2]))
            other, flat = RBFKernel(ard_num_dims=2), RBFKernel(active_dims=[0])
        for kernel, message in (
            (batched, "must not be batched"),
            (other, "ard_num_dims=2"),
            (flat, "vary in all 3 dimensions"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                make(kernel=kernel)


class TestPlan:
    def test_plan_prints_and_can_be_used(self, capsys):
        plan = DPGIBO.plan_by_theory(
            num_records=100_000, num_dims=3, guarantee=GDP(1.0)
        )
        assert str(plan.num_steps) in capsys.readouterr().out
        opt = make(num_steps=plan.num_steps, clip_norm=plan.clip_norm, n=100_000)
        assert math.isclose(opt.noise_std, plan.noise_std, rel_tol=1e-7)
