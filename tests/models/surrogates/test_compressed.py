import warnings

import pytest
import torch
from gpytorch.kernels import (
    MaternKernel,
    PolynomialKernel,
)

from botorch_dp.exceptions import CollapseWarning, InvalidArgumentError
from botorch_dp.models import (
    CompressedSurrogate,
    projection_directions,
    sliced_wasserstein,
)
from botorch_dp.models.kernels.covariances import default_gradient_kernel
from botorch_dp.models.surrogates.pruning import (
    top_direction,
)
from tests.models.surrogates.helpers import (
    DEVICE,
    NOISE,
    RADII,
    distance,
    greedy,
    make_kernel,
    normal,
    posterior,
)


def mean_variance(surrogate):
    return surrogate.covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def noisy_path(generator, num_steps, shape, *, noise=2.7):
    """What a stream of private gradients of a quadratic around 1 makes of theta."""
    theta = torch.zeros(shape, dtype=torch.float64, device=DEVICE)
    for t in range(1, num_steps + 1):
        gradient = 0.3 * (theta - 1.0) + noise * normal(generator, *shape)
        theta = theta - 0.2 * t**-0.505 * gradient
        yield theta


class TestTraceBound:
    """SW_2 to every larger dictionary is at most the root of the mean variance."""

    @pytest.mark.parametrize("dim", [1, 2, 5])
    def test_larger_dictionaries(self, dim, generator):
        kernel, x = make_kernel(), normal(generator, dim)
        directions = projection_directions(dim, 2000, seed=7, device=DEVICE)
        tightness = []
        for _ in range(30):
            spread = 0.1 + torch.rand((), generator=generator, device=DEVICE)
            X = x + spread * normal(generator, 2 * dim + 8, dim)
            small = X[: dim + 1]
            _, sigma = posterior(kernel, small, x, NOISE)
            for more in (1, 3, dim + 7):
                _, smaller = posterior(kernel, X[: dim + 1 + more], x, NOISE)
                found = sliced_wasserstein(sigma, smaller, directions)
                difference = ((sigma - smaller).trace() / dim).sqrt()
                assert found <= 1.05 * difference + 1e-9  # Monte Carlo's error
                assert difference <= (sigma.trace() / dim).sqrt() + 1e-9
                tightness.append(float(found / difference))
        assert max(tightness) > 0.5  # not a bound that holds for want of trying


def assert_from_scratch(surrogate, kernel, x, noise, atol=1e-8):
    """Weights and covariance are those of a posterior made from scratch."""
    dim = x.shape[-1]
    flat_x = x.reshape(-1, dim)
    slots = surrogate.points.shape[-2]
    points = surrogate.points.reshape(-1, slots, dim)
    weights = surrogate.weights.reshape(-1, dim, slots)
    covariance = surrogate.covariance.reshape(-1, dim, dim)
    number = surrogate.num_points.reshape(-1)
    for i, at in enumerate(flat_x):
        n = int(number[i])
        W, sigma = posterior(kernel, points[i, :n], at, noise)
        torch.testing.assert_close(weights[i, :, :n], W, rtol=1e-6, atol=1e-6)
        assert (weights[i, :, n:] == 0).all()
        assert (points[i, n:] == at).all()
        torch.testing.assert_close(covariance[i], sigma, rtol=0, atol=atol)


class TestTraceRule:
    @pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
    def test_rule_and_weights_along_a_noisy_path(self, batch, generator, double):
        x = torch.zeros(*batch, 3, **double)
        kernel = default_gradient_kernel(x).requires_grad_(False)
        surrogate = CompressedSurrogate(x, budget=0.1)
        assert_from_scratch(surrogate, kernel, x, 4e-6)
        sizes = []
        for t, x in enumerate(noisy_path(generator, 100, (*batch, 3))):
            surrogate.update(x)
            assert (mean_variance(surrogate) <= 0.1**2 + 1e-12).all()
            sizes.append(surrogate.num_points.double().mean())
            if t % 10 == 0:
                assert_from_scratch(surrogate, kernel, x, 4e-6)
            losses = normal(generator, *surrogate.points.shape[:-1])
            expected = torch.einsum("...ps,...s->...p", surrogate.weights, losses)
            torch.testing.assert_close(surrogate.gradient(losses), expected)
        assert surrogate.num_points.shape == torch.Size(batch)
        assert surrogate.num_points.dtype == torch.int64
        assert min(sizes) >= 4
        assert sum(sizes) / len(sizes) < 5

    @pytest.mark.parametrize(
        ("dim", "budget", "size"), [(2, 0.1, 3.5), (5, 0.1, 6.3), (20, 0.2, 21.1)]
    )
    def test_about_p_plus_one_points(self, dim, budget, size, generator, double):
        surrogate = CompressedSurrogate(torch.zeros(5, dim, **double), budget=budget)
        sizes = []
        for x in noisy_path(generator, 100, (5, dim)):
            surrogate.update(x)
            assert (mean_variance(surrogate) <= budget**2 + 1e-12).all()
            assert (surrogate.num_points > dim).all()
            sizes.append(surrogate.num_points.double().mean())
        assert sum(sizes[-50:]) / 50 <= size

    def test_a_budget_that_asks_for_nothing(self, double):
        """There are p + 1 points all the same: fewer know no gradient."""
        x = torch.zeros(2, 3, **double)
        surrogate = CompressedSurrogate(x, budget=5.0)
        assert surrogate.num_points.tolist() == [4, 4]
        surrogate.update(x + 0.5)
        assert surrogate.num_points.tolist() == [4, 4]

    def test_nothing_changes_while_the_rule_holds(self, generator, double):
        x = torch.zeros(3, 4, **double)
        surrogate = CompressedSurrogate(x, budget=0.1)
        points, weights = surrogate.points, surrogate.weights
        inverse = surrogate._dictionary.inverse
        surrogate.update(x + 0.01)
        assert torch.equal(surrogate.points, points)
        assert surrogate._dictionary.inverse is inverse
        assert not torch.equal(surrogate.weights, weights)

    def test_only_elements_that_violate_the_rule_change(self, double):
        x = torch.zeros(3, 2, **double)
        surrogate = CompressedSurrogate(x, budget=0.1)
        before = surrogate.points
        x[1] += 1.0
        surrogate.update(x)
        for i in (0, 2):
            assert torch.equal(surrogate.points[i, :3], before[i])
        assert not torch.equal(surrogate.points[1, :3], before[1])

    def test_batched_is_each_on_its_own(self, generator, double):
        x = torch.zeros(4, 3, **double)
        batched = CompressedSurrogate(x, budget=0.1)
        alone = [CompressedSurrogate(x[i], budget=0.1) for i in range(4)]
        for x in noisy_path(generator, 40, (4, 3)):
            batched.update(x)
            for i, surrogate in enumerate(alone):
                surrogate.update(x[i])
                n = int(batched.num_points[i])
                assert int(surrogate.num_points) == n
                for name in ("points", "weights"):
                    ours = getattr(batched, name)[i]
                    ours = ours[:n] if name == "points" else ours[:, :n]
                    theirs = getattr(surrogate, name)
                    # Rounding, which differs by processor, grows with K's condition.
                    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    def test_a_jump_far_away_leaves_no_old_point(self, double):
        x = torch.zeros(2, 3, **double)
        surrogate = CompressedSurrogate(x, budget=0.1)
        surrogate.update(x + 100.0)
        assert surrogate.num_points.tolist() == [4, 4]
        assert (surrogate.points > 90.0).all()
        assert (mean_variance(surrogate) <= 0.01).all()

    def test_gradient_of_a_smooth_function(self, generator, double):
        x = 0.3 * normal(generator, 10, 5)
        surrogate = CompressedSurrogate(x, budget=0.05)

        def loss(X):
            return torch.log1p(torch.exp(X.sum(dim=-1))) + X.square().sum(dim=-1) / 2

        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(at).sum(), at)
        result = surrogate.gradient(loss(surrogate.points))
        # One-sided: half a step of 0.05 length scales times the second derivative.
        assert (result - expected).abs().max() < 0.2
        cosine = torch.cosine_similarity(result, expected, dim=-1)
        assert cosine.min() > 0.99

    @pytest.mark.parametrize("base", [MaternKernel, PolynomialKernel])
    def test_other_kernels(self, base, generator, double):
        kwargs = {"power": 2} if base is PolynomialKernel else {}
        kernel = make_kernel(base, **kwargs)
        x = torch.zeros(2, 2, **double)
        surrogate = CompressedSurrogate(
            x, budget=0.3, kernel=kernel, noise_variance=1e-5
        )
        for x in noisy_path(generator, 20, (2, 2)):
            surrogate.update(x)
            assert (mean_variance(surrogate) <= 0.3**2 + 1e-12).all()
            assert (surrogate.num_points <= 12).all()
        assert_from_scratch(surrogate, kernel, x, 1e-5)

    def test_noise_of_another_kernel_is_relative_to_its_variance(self, double):
        surrogate = CompressedSurrogate(
            torch.zeros(2, **double), budget=0.5, kernel=make_kernel()
        )
        assert surrogate.settings()["noise_variance"] == pytest.approx(2e-6)

    def test_points_stay_in_the_box(self, generator, double):
        bounds = torch.tensor([[-0.3, -0.3], [0.3, torch.inf]], **double)
        x = torch.tensor([[-0.3, -0.3], [0.3, -0.3], [0.0, 0.5]], **double)
        surrogate = CompressedSurrogate(x, budget=0.1, bounds=bounds)
        for _ in range(30):
            points = surrogate.points
            assert ((points >= bounds[0]) & (points <= bounds[1])).all()
            assert (mean_variance(surrogate) <= 0.01 + 1e-12).all()
            x = (x + 0.2 * normal(generator, 3, 2)).clamp(*bounds)
            surrogate.update(x)
        surrogate.update(torch.full((3, 2), -5.0, **double))
        assert (surrogate.points >= bounds[0]).all()

    def test_a_budget_that_cannot_be_met(self, generator, double):
        """The dictionary stays bounded, and the covariance says how far off it is."""
        x = torch.zeros(3, 2, **double)
        surrogate = CompressedSurrogate(x, budget=1e-4)
        for x in noisy_path(generator, 15, (3, 2)):
            surrogate.update(x)
            assert (surrogate.num_points <= 12).all()
        assert (mean_variance(surrogate) > 1e-8).all()
        assert (mean_variance(surrogate) < 1e-3).all()

    def test_much_noise(self, double):
        surrogate = CompressedSurrogate(
            torch.zeros(2, **double), budget=0.1, noise_variance=4.0
        )
        points = surrogate.points
        assert len(points) <= 12
        assert (points == 0).all(dim=-1).sum() <= 1  # not x again and again
        assert float(mean_variance(surrogate)) > 0.1

    def test_stream_of_a_hundred_thousand_points(self, generator, double):
        x = torch.zeros(50, 2, **double)
        surrogate = CompressedSurrogate(x, budget=0.1)
        most = 0
        for _ in range(2000):
            x = x + 0.05 * normal(generator, 50, 2)
            surrogate.update(x)
            most = max(most, surrogate.points.shape[-2])
        assert most <= 9
        assert (mean_variance(surrogate) <= 0.01 + 1e-12).all()
        kernel = default_gradient_kernel(x).requires_grad_(False)
        assert_from_scratch(surrogate, kernel, x, 4e-6)
        assert x.abs().max() > 1.0  # it did go somewhere


class TestLiteralRule:
    @pytest.mark.filterwarnings("ignore::botorch_dp.exceptions.CollapseWarning")
    @pytest.mark.parametrize("budget", [0.03, 0.1, 0.3])
    def test_algorithm_two_from_scratch(self, budget, generator, double):
        x = torch.zeros(2, **double)
        kernel = default_gradient_kernel(x).requires_grad_(False)
        surrogate = CompressedSurrogate(
            x, budget=budget, rule="literal", num_projections=30, seed=5
        )
        directions = projection_directions(2, 30, seed=5, device=DEVICE)
        D, removed = torch.empty(0, 2, **double), 0

        def step(D, x):
            _, sigma = posterior(kernel, D, x, 4e-6)
            v = top_direction(sigma)
            candidates = [x + s * r * 2.0 * v for s in (1, -1) for r in RADII]
            traces = [
                float(posterior(kernel, torch.cat([D, c[None]]), x, 4e-6)[1].trace())
                for c in candidates
            ]
            best = candidates[traces.index(min(traces))]
            D = torch.cat([D, best[None]])  # line 2
            _, enlarged = posterior(kernel, D, x, 4e-6)
            return greedy(
                D,
                lambda D: distance(
                    posterior(kernel, D, x, 4e-6)[1], enlarged, directions
                ),
                budget,
            )

        def same(D):
            n = int(surrogate.num_points)
            assert n == len(D)
            ours = sorted(surrogate.points.tolist())
            torch.testing.assert_close(
                torch.tensor(ours, **double),
                torch.tensor(sorted(D.tolist()), **double),
                rtol=0,
                atol=1e-6,
            )

        D = step(D, x)
        same(D)
        for t, x in enumerate(noisy_path(generator, 12, (2,))):
            surrogate.update(x)
            D = step(D, x)
            removed += t + 2 - len(D)
            same(D)
        assert removed > 0

    def test_collapse_where_the_trace_rule_does_not(self, generator, double):
        start = torch.zeros(3, 20, **double)
        literal = CompressedSurrogate(start, budget=0.1, rule="literal")
        trace = CompressedSurrogate(start, budget=0.2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for x in noisy_path(generator, 300, (3, 20)):
                literal.update(x)
                trace.update(x)
        assert [w.category for w in caught] == [CollapseWarning]
        assert (
            "After 10 updates the dictionary has fewer points than the 20 dim"
            in str(caught[0].message)
        )
        assert caught[0].filename == __file__
        assert literal.num_points.tolist() == [1, 1, 1]
        assert (mean_variance(literal) > 0.9).all()
        assert trace.num_points.tolist() == [21, 21, 21]
        assert (mean_variance(trace) <= 0.04 + 1e-12).all()

    def test_no_warning_while_there_are_enough_points(self, generator, double):
        surrogate = CompressedSurrogate(
            torch.zeros(2, **double), budget=0.02, rule="literal"
        )
        for x in noisy_path(generator, 30, (2,)):
            surrogate.update(x)  # warnings of the library are errors here
        assert surrogate.num_points >= 2


class TestState:
    @pytest.mark.filterwarnings("ignore::botorch_dp.exceptions.CollapseWarning")
    @pytest.mark.parametrize("rule", ["trace", "literal"])
    def test_goes_on_to_the_bit(self, rule, generator, double):
        start = torch.zeros(6, 3, **double)
        first = CompressedSurrogate(start, budget=0.1, rule=rule)
        path = list(noisy_path(generator, 40, (6, 3)))
        for x in path[:20]:
            first.update(x)
        state = first.state_dict()
        assert all(isinstance(value, torch.Tensor) for value in state.values())
        second = CompressedSurrogate(start + 1.0, budget=0.1, rule=rule)
        second.load_state_dict(state)
        for x in path[20:]:
            for name in ("points", "weights", "num_points", "covariance"):
                assert torch.equal(getattr(first, name), getattr(second, name))
            first.update(x)
            second.update(x)
        assert torch.equal(first.weights, second.weights)
        assert int(second.state_dict()["num_updates"]) == 40

    def test_handed_out_tensors_stay(self, double):
        x = torch.zeros(2, 3, **double)
        surrogate = CompressedSurrogate(x, budget=0.1)
        handed = surrogate.points, surrogate.weights, surrogate.num_points
        state = surrogate.state_dict()
        copies = [tensor.clone() for tensor in (*handed, *state.values())]
        surrogate.update(x + 3.0)
        x.fill_(torch.nan)
        for tensor, before in zip((*handed, *state.values()), copies, strict=True):
            assert torch.equal(tensor, before)
        assert surrogate.points.isfinite().all()

    def test_refused_state_changes_nothing(self, double):
        surrogate = CompressedSurrogate(torch.zeros(2, 3, **double), budget=0.1)
        state, points = surrogate.state_dict(), surrogate.points
        for name, bad, message in [
            ("x", state["x"][:1], r"finite x of shape \(2, 3\)"),
            ("x", state["x"] * torch.nan, r"finite x of shape \(2, 3\)"),
            ("points", state["points"][:1], "points must be"),
        ]:
            with pytest.raises(InvalidArgumentError, match=message):
                surrogate.load_state_dict({**state, name: bad})
            assert torch.equal(surrogate.points, points)
        with pytest.raises(KeyError, match="x"):
            surrogate.load_state_dict({})

    def test_dtype_follows_the_start(self, tkwargs):
        x = torch.zeros(2, 3, **tkwargs)
        surrogate = CompressedSurrogate(x, budget=0.1)
        surrogate.update(x + 0.5)
        for name in ("points", "weights", "covariance"):
            tensor = getattr(surrogate, name)
            assert (tensor.dtype, tensor.device) == tuple(tkwargs.values())
        assert (mean_variance(surrogate) <= 0.01).all()
        losses = surrogate.points.square().sum(dim=-1) / 2
        gradient = surrogate.gradient(losses)
        assert gradient.dtype == tkwargs["dtype"]
        torch.testing.assert_close(gradient, x + 0.5, rtol=0, atol=0.15)

    def test_settings_are_plain(self, double):
        bounds = torch.tensor([[-1.0, -2.0], [1.0, 2.0]], **double)
        surrogate = CompressedSurrogate(
            torch.zeros(2, **double), budget=0.1, bounds=bounds, seed=4
        )
        settings = surrogate.settings()
        assert settings["rule"] == "trace"
        assert settings["budget"] == 0.1
        assert settings["bounds"] == bounds.tolist()
        assert settings["seed"] == 4
        assert settings["num_projections"] == 100
        assert settings["noise_variance"] == pytest.approx(4e-6)
        assert [part["type"] for part in settings["kernel"]] == [
            "ScaleKernel",
            "RBFKernel",
        ]


class TestBadArguments:
    @pytest.mark.parametrize("budget", [0.0, -0.1, float("nan"), "0.1"])
    def test_budget(self, budget, double):
        with pytest.raises(InvalidArgumentError, match=r"budget \(kappa\) must .* got"):
            CompressedSurrogate(torch.zeros(2, **double), budget=budget)

    def test_constructor(self, double):
        x = torch.zeros(3, 2, **double)
        for bad in ([0.0], torch.zeros((), **double), x.long(), x[:0]):
            with pytest.raises(
                InvalidArgumentError,
                match=r"initial_x must (be a ... x p tensor|not be empty)",
            ):
                CompressedSurrogate(bad, budget=0.1)
        for name, value in [
            ("rule", "exact"),
            ("num_projections", 0),
            ("seed", -1),
            ("noise_variance", 0.0),
            ("bounds", x),
        ]:
            with pytest.raises(InvalidArgumentError, match=f"{name} must .* got"):
                CompressedSurrogate(x, **{"budget": 0.1, name: value})
        with pytest.raises(
            InvalidArgumentError, match="every lower bound below its upper"
        ):
            CompressedSurrogate(x, budget=0.1, bounds=torch.zeros(2, 2, **double))
        with pytest.raises(
            InvalidArgumentError, match="x must be finite, but contains"
        ):
            CompressedSurrogate(x * torch.nan, budget=0.1)

    @pytest.mark.parametrize("rule", ["trace", "literal"])
    def test_update(self, rule, double):
        x = torch.zeros(3, 2, **double)
        surrogate = CompressedSurrogate(x, budget=0.1, rule=rule)
        points, weights = surrogate.points, surrogate.weights
        for bad, message in [
            (x[:2], r"x must be .* shape 3 x 2 on .*, got .* shape \(2, 2\)"),
            (x.float(), "x must be a torch.float64 tensor .* got torch.float32"),
            ([0.0], r"x must be .* got a list"),
            (x + torch.inf, "x must be finite, but contains nan or inf"),
            (x * torch.nan, "x must be finite, but contains nan or inf"),
        ]:
            with pytest.raises(InvalidArgumentError, match=message):
                surrogate.update(bad)
            assert torch.equal(surrogate.points, points)
            assert torch.equal(surrogate.weights, weights)

    def test_losses(self, double):
        surrogate = CompressedSurrogate(torch.zeros(3, 2, **double), budget=0.1)
        with pytest.raises(InvalidArgumentError, match=r"losses must .* \(3, 3\), got"):
            surrogate.gradient(torch.zeros(3, 4, **double))
        before = surrogate.state_dict()
        assert surrogate.gradient(torch.full((3, 3), torch.nan, **double)).isnan().all()
        after = surrogate.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
