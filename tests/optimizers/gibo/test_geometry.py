"""Where DP-GIBO evaluates, and what its surrogate leaves unknown."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel

from botorch_dp import GradientGP
from botorch_dp.exceptions import (
    InvalidArgumentError,
)
from botorch_dp.models.gradient_weights import gradient_weights
from tests.optimizers.problems import DEVICE, DOUBLE, Quadratics, make


class TestWhereToEvaluate:
    @pytest.mark.parametrize("base", [RBFKernel, lambda: MaternKernel(nu=2.5)])
    def test_design_is_optimal_at_first(self, base):
        with DEVICE:
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
        follower.follow = lambda *args: opt._parameter
        for _ in range(29):
            opt.tell(problem(opt.ask()))
        assert len(opt._points.unique(dim=0)) < len(opt._points) - 16
        window = opt._points[opt.geometry.nearby(opt._points, opt._parameter)]
        assert len(window.unique(dim=0)) == len(window) == 16

    def test_a_zero_has_no_sign(self):
        opt, zero = make(window=2), torch.zeros(1, 3, **DOUBLE).cpu()
        points = torch.cat([zero, -zero, zero, zero + 0.5])
        assert opt.geometry.nearby(points, zero[0]) == [0, 3]

    def test_default_window(self):
        # From 200 dimensions on, earlier points cost more than they tell.
        for d, window in ((3, 16), (199, 800), (200, 0)):
            assert make(d=d).settings()["window"] == window
        assert make(d=200, window=7).settings()["window"] == 7

    def test_no_window(self):
        problem = Quadratics()
        opt = make(num_steps=3, window=0)
        while not opt.done:
            X = opt.ask()
            assert len(X) == 4
            opt.tell(problem(X).split(50))

    def test_the_same_points_after_a_reload(self):
        with DEVICE:
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


class TestRefinement:
    def test_leaves_less_than_the_design_and_stays_inside(self):
        opts = [make(search=search, step_size=0.05) for search in ("design", "refine")]
        problem = Quadratics()
        for step in range(4):
            # Both from the same history and the same point.
            opts[1]._points, opts[1]._rows = opts[0]._points, [*opts[0]._rows]
            opts[1]._parameter, opts[1]._pending = opts[0]._parameter, None
            opts[1].geometry.forget()
            opts[1]._history = opts[0]._history
            X = opts[1].ask()
            assert ((X >= 0) & (X <= 1)).all()
            opts[0].ask()
            if step:
                assert opts[1]._trace < opts[0]._trace
            else:
                assert opts[1]._trace == pytest.approx(opts[0]._trace)
            opts[0].tell(problem(opts[0].ask()))

    def test_weights_and_trace(self):
        problem, opt = Quadratics(), make(search="refine", noise_variance=1e-4)
        while not opt.done:
            theta, X = opt._parameter, opt.ask()
            expected = gradient_weights(
                opt.geometry.kernel,
                theta,
                torch.cat([opt._points[opt._remembered], X.cpu()]),
                noise_variance=1e-4,
                constant_mean=True,
            )
            assert torch.allclose(opt._weights.cpu(), expected.weights, atol=1e-5)
            opt.tell(problem(X))
            trace = opt.history[-1].trace
            assert trace == pytest.approx(float(expected.trace), rel=1e-4)


class TestNoNewPoints:
    """Algorithm 2 with b = 0: what is known suffices."""

    @pytest.mark.parametrize("mean", ["constant", "zero"])
    def test_asks_for_none_and_pays_for_every_step(self, mean):
        asked = []

        def losses(X):
            asked.append(len(X))
            return Quadratics()(X)

        opt = make(tolerance=4.0, mean=mean, num_steps=8, step_size=0.01)
        opt.run(losses, progress=False)
        assert 0 < len(asked) < 8
        assert 0 not in asked
        assert opt.history[-1].num_evaluations == sum(asked)
        assert all(step.trace <= 4.0 * (1 + 1e-6) for step in opt.history)
        # Every step releases a gradient, and costs the same.
        assert opt.account.num_charged == 8

    def test_the_gradient_is_of_losses_told_before(self):
        problem = Quadratics(n=50)
        opt = make(n=50, tolerance=4.0, step_size=0.01, clip_norm=1e6, num_steps=8)
        while len(X := opt.ask()):
            opt.tell(problem(X))
        assert X.shape == (0, 3)
        known, W = opt._points[opt._remembered], opt._weights
        expected = problem(known.to(X)) @ W.mT
        none = problem(known.to(X))[:, :0]
        seen = torch.cat([*opt._gradients(none, opt._pending)])
        assert torch.allclose(seen, expected)
        with pytest.raises(InvalidArgumentError, match="50 x 0"):
            opt.tell(problem(known.to(X)))
        charged = opt.account.num_charged
        opt.tell(none)
        assert opt.account.num_charged == charged + 1

    def test_losses_in_chunks_are_asked_for_again(self):
        problem, opt = Quadratics(), make(tolerance=4.0, step_size=0.01, num_steps=3)
        while not opt.done:
            X = opt.ask()
            assert len(X)
            opt.tell(problem(X).split(64))

    def test_fewest_points_of_those_tried_one_by_one(self):
        # From the same history, one point less does not reach the tolerance.
        problem, opt = Quadratics(), make(tolerance=1.0, step_size=0.05, num_steps=6)
        sizes = []
        while not opt.done:
            X = opt.ask()
            sizes.append(len(X))
            if len(X) > 2 and opt.history:
                geometry, theta = opt.geometry, opt._parameter
                geometry.forget()
                geometry._surrogate.look(
                    theta,
                    opt._remembered,
                    opt._points,
                    geometry.noise_variance_at(0),
                )
                fewer = geometry._best_design(
                    theta, geometry._surrogate.directions(), len(X) - 1, 1.0
                )
                assert geometry._surrogate.trace_with(fewer) > 1.0
                geometry.forget()
            opt.tell(problem(X))
        assert min(sizes) < max(sizes)


class TestSurrogate:
    @pytest.mark.parametrize("mean", ["constant", "zero"])
    @pytest.mark.parametrize("settings", [{}, {"window": 5}, {"window": 0}], ids=str)
    def test_weights_of_every_step(self, mean, settings):
        # Whatever is kept from earlier steps, and with losses that are asked for again.
        problem = Quadratics()
        opt = make(mean=mean, num_steps=12, noise_variance=1e-4, **settings)
        while not opt.done:
            theta, X, step = opt._parameter, opt.ask(), len(opt.history)
            expected = gradient_weights(
                opt.geometry.kernel,
                theta,
                torch.cat([opt._points[opt._remembered], X.cpu()]),
                noise_variance=1e-4,
                constant_mean=mean == "constant",
            )
            assert torch.allclose(opt._weights.cpu(), expected.weights, atol=1e-6)
            losses = problem(X)
            opt.tell(losses.split(64) if step in (3, 4, 8) else losses)
            trace = opt.history[-1].trace
            assert math.isclose(trace, float(expected.trace), rel_tol=1e-7)

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

    def test_the_trace_is_what_the_posterior_leaves(self):
        problem = Quadratics()
        opt = make(mean="zero")
        for _ in range(3):
            theta, X = opt.x.cpu(), opt.ask()
            D = torch.cat([opt._points, X.cpu()])
            model = GradientGP(
                D, D[:, :1], opt.geometry.kernel, opt.geometry.noise_variance
            )
            expected = model.gradient_posterior(theta.unsqueeze(0)).variance.sum()
            opt.tell(problem(X))
            assert math.isclose(opt.history[-1].trace, float(expected), rel_tol=1e-6)
