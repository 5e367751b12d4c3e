"""DP-GIBO against brute force: surrogate, step, designs, chunks."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel

from botorch_dp import DPGIBO, GDP, RDP, ApproxDP, GradientGP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
    UnsupportedKernelError,
)
from botorch_dp.privacy import GaussianEvent, SecureNoise, clip_rows
from tests.optimizers.problems import CPU, DOUBLE, Quadratics, make, seeded, unit_box


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
            D = torch.cat([opt._points, X])
            losses = problem(D) + shifts
            K = opt.geometry.kernel(D).to_dense() + 1e-3 * torch.eye(len(D), **DOUBLE)
            ones = torch.ones(len(D), **DOUBLE)
            weight = torch.linalg.solve(K, ones)
            gradients = []
            for row in losses:
                residual = row - (weight @ row) / weight.sum()
                model = GradientGP(D, residual.unsqueeze(-1), opt.geometry.kernel, 1e-3)
                gradients.append(model.gradient_posterior(theta.unsqueeze(0)).mean[0])
            mean = released_mean(opt, problem(X) + shifts)
            expected = torch.stack(gradients).mean(dim=0)
            assert torch.allclose(mean, expected, rtol=1e-6, atol=1e-9)

    def test_a_record_s_level_does_not_matter(self):
        problem = Quadratics()
        means = []
        for shift in (0.0, 1e3):
            opt = make()
            means.append(released_mean(opt, problem(opt.ask()) + shift))
        assert torch.allclose(*means, atol=1e-7)

    def test_the_trace_is_what_the_posterior_leaves(self):
        problem = Quadratics()
        opt = make(mean="zero")
        for _ in range(3):
            theta, X = opt.x, opt.ask()
            D = torch.cat([opt._points, X])
            model = GradientGP(
                D, D[:, :1], opt.geometry.kernel, opt.geometry.noise_variance
            )
            expected = model.gradient_posterior(theta.unsqueeze(0)).variance.sum()
            opt.tell(problem(X))
            assert math.isclose(opt.history[-1].trace, float(expected), rel_tol=1e-6)

    def test_near_the_true_gradient(self):
        problem = Quadratics()
        opt = make(clip_norm=1e3)
        for _ in range(3):
            true = problem.gradients(opt.x).mean(dim=0)
            mean = released_mean(opt, problem(opt.ask()))
            assert (mean - true).norm() < 0.01 * true.norm() + 1e-3

    def test_window(self):
        # Only the nearest points count: the others' losses may be anything.
        problem = Quadratics()
        opt = make(window=5, num_steps=6)
        for _ in range(4):
            opt.tell(problem(opt.ask()))
        opt.ask()
        assert len(opt._remembered) == 5
        distances = (opt._points - opt._parameter).norm(dim=-1)
        assert sorted(distances.argsort()[:5].tolist()) == opt._remembered

    def test_exact_for_quadratics_with_the_polynomial_kernel(self):
        # Paper, 4.1: after enough points the quadratic is known.
        problem = Quadratics(d=2)
        with CPU:
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
            weights, _ = opt.geometry.weights(
                opt._parameter, torch.cat([opt._points, X])
            )
            G = problem(torch.cat([opt._points, X])) @ weights.mT
            norms = G.norm(dim=-1, keepdim=True)
            g = (G * (B / norms).clamp(max=1.0)).mean(dim=0)
            w = torch.randn(3, generator=noise, **DOUBLE)
            theta = theta - eta * (g + 2 * B * math.sqrt(T) / (n * mu) * w)
            theta = theta.clamp(0.0, 1.0)
            opt.tell(problem(X))
            assert torch.allclose(opt.x, theta, atol=1e-9)
        assert opt.done
        assert torch.equal(opt.result().x, opt.x)

    def test_noise(self):
        assert math.isclose(make(num_steps=25).noise_std, 2 * 5 / 200)
        approx = ApproxDP(epsilon=1.0, delta=1e-6)
        opt = make(guarantee=approx, num_steps=4)
        assert math.isclose(opt.noise_std, 2 * 2 / (200 * approx.to_gdp().mu))
        opt = make(guarantee=RDP(order=8.0, epsilon=0.5), num_steps=4)
        assert math.isclose(opt.noise_std, 0.01 * 2 * math.sqrt(8.0 / (2 * 0.5)))

    @pytest.mark.parametrize(
        "guarantee", [GDP(0.7), ApproxDP(1.0, 1e-5), RDP(8.0, 0.5)]
    )
    def test_a_whole_run_spends_its_budget_exactly(self, guarantee):
        opt = make(guarantee=guarantee)
        result = opt.run(Quadratics(), progress=False)
        spent = opt.ledger.accountant().spent_of(guarantee)
        assert opt.ledger.accountant().within(guarantee)
        limit = getattr(guarantee, "mu", None) or guarantee.epsilon
        assert math.isclose(spent.amount, limit, rel_tol=1e-6)
        assert result.certificate.num_releases == 5

    def test_secure_noise_fits_its_budget(self):
        pytest.importorskip("opendp")
        guarantee = ApproxDP(1.0, 1e-5)
        opt = make(guarantee=guarantee, secure=True, generator=None)
        result = opt.run(Quadratics(), progress=False)
        assert opt.ledger.accountant().within(guarantee)
        assert result.certificate.noise == ("secure",)
        assert opt.noise_std > make(guarantee=guarantee).noise_std

    @pytest.mark.parametrize("n", [200, 20_000])
    def test_secure_noise_on_a_coarse_grid_fits_its_budget(self, n):
        pytest.importorskip("opendp")
        guarantee, grid = ApproxDP(1.0, 1e-5), SecureNoise(grid_exponent=-24)
        opt = make(n=n, guarantee=guarantee, secure=grid, generator=None, num_steps=4)
        opt.run(Quadratics(n=n), progress=False)
        assert opt.ledger.accountant().within(guarantee)

    def test_stays_in_the_box(self):
        opt = make(clip_norm=1.0, step_size=5.0, n=20, mu=0.05, num_steps=8)
        problem = Quadratics(n=20)
        while not opt.done:
            X = opt.ask()
            assert ((X >= 0) & (X <= 1)).all()
            opt.tell(problem(X))
            assert ((opt.x >= 0) & (opt.x <= 1)).all()

    @pytest.mark.parametrize("update", ["adagrad", "sgd", torch.optim.Adam])
    def test_updates_are_torch_optim(self, update):
        opt = make(update=update, step_size=0.05, num_steps=4, mu=1e6)
        parameter = torch.nn.Parameter(opt.x.clone())
        classes = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
        with CPU:
            rule = classes.get(update, update)([parameter], lr=0.05)
        problem = Quadratics()
        for _ in range(4):
            parameter.grad = released_mean(opt, problem(opt.ask()))
            with CPU:
                rule.step()
            assert torch.allclose(opt.x, parameter.detach(), atol=1e-5)

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


class TestWhereToEvaluate:
    @pytest.mark.parametrize("base", [RBFKernel, lambda: MaternKernel(nu=2.5)])
    def test_design_is_optimal_at_first(self, base):
        with CPU:
            kernel = ScaleKernel(base()).double()
            kernel.base_kernel.lengthscale = 0.4
        traces = {}
        for search in ("design", "polish", "optimize"):
            opt = make(kernel=kernel, search=search)
            opt.tell(Quadratics()(opt.ask()))
            traces[search] = opt.history[0].trace
        assert traces["polish"] <= traces["design"] * (1 + 1e-9)
        assert traces["design"] <= traces["optimize"] * 1.01

    def test_asking_again_gives_the_same(self):
        opt = make()
        assert torch.equal(opt.ask(), opt.ask())

    def test_algorithm_2_takes_the_fewest_points(self):
        # Without history the smallest batch that reaches the tolerance, tried one by
        # one; later less, since earlier points help.
        opt = make(tolerance=2.0, mean="zero", num_steps=6, step_size=0.01)
        sizes = []
        for size in range(1, 7):
            trial = make(batch_size=size, mean="zero")
            trial.tell(Quadratics()(trial.ask()))
            if trial.history[0].trace <= 2.0:
                break
        problem = Quadratics()
        while not opt.done:
            X = opt.ask()
            sizes.append(len(X))
            opt.tell(problem(X))
            assert opt.history[-1].trace <= 2.0 * (1 + 1e-6)
        assert sizes[0] == size
        assert sum(sizes[1:]) < 5 * size

    def test_algorithm_2_with_a_constant_mean(self):
        problem, opt = Quadratics(), make(tolerance=2.0, num_steps=4)
        while not opt.done:
            opt.tell(problem(opt.ask()))
            assert opt.history[-1].trace <= 2.0

    def test_resting_at_a_corner(self):
        # Points come again there: copies must not crowd out the others.
        problem = Quadratics()
        opt = make(num_steps=30, initial_x=torch.zeros(3, **DOUBLE))
        follower = opt._follower
        follower.follow = lambda gradient, project: opt._parameter
        for _ in range(29):
            opt.tell(problem(opt.ask()))
        assert len(opt._points.unique(dim=0)) < len(opt._points) - 16
        window = opt._points[opt.geometry.nearby(opt._points, opt._parameter)]
        assert len(window.unique(dim=0)) == len(window) == 16

    def test_no_window(self):
        problem = Quadratics()
        opt = make(num_steps=3, window=0)
        while not opt.done:
            X = opt.ask()
            assert len(X) == 4
            opt.tell(problem(X).split(50))

    def test_the_same_points_after_a_reload(self):
        with CPU:
            kernel = PolynomialKernel(power=2).double()
        asked = []
        for _ in range(2):
            torch.rand(3, **DOUBLE)  # whatever the global generator does
            opt = make(kernel=kernel)
            asked.append(opt.ask())
        assert torch.equal(*asked)

    def test_a_tolerance_below_the_floor(self):
        with pytest.raises(InvalidArgumentError, match="tolerance must be at least"):
            make(tolerance=1e-9)


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
    def test_out_of_turn(self):
        opt, problem = make(num_steps=2), Quadratics()
        X = opt.search_box.box
        with pytest.raises(OptimizerStateError, match="call ask"):
            opt.tell(problem(X))
        with pytest.raises(OptimizerStateError, match="No step has been taken"):
            opt.result()
        X = opt.ask()
        opt.tell(problem(X))
        with pytest.raises(OptimizerStateError, match="once for each"):
            opt.tell(problem(X))
        opt.tell(problem(opt.ask()))
        with pytest.raises(OptimizerStateError, match="All 2 steps"):
            opt.ask()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda L: L[:-1], "num_records=200 rows"),
            (lambda L: L[:, :-1], "200 x 4"),
            (lambda L: L.mean(dim=0), "200 x 4"),
            (lambda L: torch.cat([L, L]), "400 rows in all"),
            (lambda L: [L, L[:1]], "201 rows in all"),
            (lambda L: [], "got 0"),
            (lambda L: L.long(), "dtype"),
            (lambda L: L.tolist(), "torch.Tensor"),
            (lambda L: 3.0, "n x 4 tensor"),
        ],
    )
    def test_losses_of_the_wrong_shape_cost_nothing(self, change, message):
        opt, problem = make(), Quadratics()
        losses = problem(opt.ask())
        losses[:] = 0.777
        with pytest.raises(InvalidArgumentError, match=message) as raised:
            opt.tell(change(losses))
        assert "777" not in str(raised.value)  # a loss is private, its shape is not
        assert len(opt.ledger) == 0
        opt.tell(losses)  # the same question can still be answered
        assert len(opt.ledger) == 1

    def test_an_exhausted_budget(self):
        ledger = Ledger(cap=GDP(1.0))
        make(ledger=ledger).run(Quadratics(), progress=False)
        opt = make(ledger=ledger)
        with pytest.raises(BudgetExceededError, match="this run would bring it to"):
            opt.ask()
        assert len(ledger) == 5

    def test_a_budget_for_some_of_the_steps(self):
        """Refused before the first, not after the last that is affordable."""
        ledger = Ledger(cap=GDP(1.0))
        ledger.charge(GaussianEvent(2.0))
        evaluated = []
        with pytest.raises(
            BudgetExceededError,
            match=r"spent mu=0.5 in 1 charge\(s\), this run would bring it to 1.1",
        ):
            make(ledger=ledger).run(evaluated.append, progress=False)
        assert evaluated == []
        assert len(ledger) == 1

    def test_a_budget_that_another_run_spends_meanwhile(self):
        ledger = Ledger(cap=GDP(1.0))
        opt = make(ledger=ledger)
        losses = Quadratics()(opt.ask())
        make(ledger=ledger).run(Quadratics(), progress=False)
        before = opt.state_dict()
        with pytest.raises(BudgetExceededError):
            opt.tell(losses)
        assert torch.equal(opt.state_dict()["parameter"], before["parameter"])
        assert len(ledger) == 5

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
        with CPU:
            rough, polynomial = MaternKernel(nu=0.5), PolynomialKernel(power=2)
        with pytest.raises(UnsupportedKernelError, match=r"nu=0\.5"):
            make(kernel=rough)
        with pytest.raises(InvalidArgumentError, match="search must be 'optimize'"):
            make(kernel=polynomial, search="design")
        with pytest.raises(InvalidArgumentError, match="closed form"):
            make(kernel=polynomial, tolerance=1.0)
        with CPU:
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
        plan = DPGIBO.plan(num_records=100_000, num_dims=3, guarantee=GDP(1.0))
        assert str(plan.num_steps) in capsys.readouterr().out
        opt = make(num_steps=plan.num_steps, clip_norm=plan.clip_norm, n=100_000)
        assert math.isclose(opt.noise_std, plan.noise_std, rel_tol=1e-7)


def test_clipping_is_that_of_the_privacy_core():
    problem = Quadratics(n=30)
    opt = make(n=30, clip_norm=0.1)
    X = opt.ask()
    weights, _ = opt.geometry.weights(opt._parameter, X)
    expected = clip_rows(problem(X) @ weights.mT, 0.1).mean(dim=0)
    assert torch.allclose(released_mean(opt, problem(X)), expected, atol=1e-12)
