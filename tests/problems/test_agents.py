"""Problems of many agents: shapes, tables, and the synthetic family's statistics."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import AgentProblem, PerturbedGPDraws, TabulatedAgents

CPU = torch.device("cpu")


def uniform(generator, *shape, **tkwargs):
    tkwargs = {"dtype": torch.float64, "device": CPU, **tkwargs}
    return torch.rand(*shape, generator=generator, **tkwargs)


class Planes(AgentProblem):
    """Agent n scores (n + 1) x_1 + x_2^2."""

    def __init__(self, **kwargs):
        kwargs = {"device": CPU, **kwargs}
        super().__init__(num_agents=4, bounds=[(-1.0, 1.0), (0.0, 3.0)], **kwargs)

    def _scores(self, agents, X):
        return (agents + 1).unsqueeze(-1) * X[..., 0] + X[..., 1].square()


class TestBase:
    def test_evaluate(self, tkwargs, generator):
        problem = Planes(dtype=tkwargs["dtype"])
        assert (problem.dim, problem.num_agents, problem.candidates) == (2, 4, None)
        assert (problem.dtype, problem.device) == tuple(tkwargs.values())
        assert problem.optimal_values is None
        X = uniform(generator, 4, 5, 2, **tkwargs)
        scores = problem.evaluate(None, X)
        assert scores.shape == (4, 5)
        assert scores.dtype == tkwargs["dtype"]
        torch.testing.assert_close(scores[2], 3 * X[2, :, 0] + X[2, :, 1] ** 2)
        agents = torch.tensor([2, 0, 2], device=CPU)
        assert torch.equal(problem.evaluate(agents, X[[2, 0, 2]]), scores[[2, 0, 2]])

    def test_rounding_at_the_bounds(self):
        problem = Planes()
        X = torch.tensor([1.0, 3.0], dtype=torch.float64, device=CPU).expand(4, 1, 2)
        scores = problem.evaluate(None, X * (1 + 1e-15))
        assert torch.equal(scores, problem.evaluate(None, X))

    def test_noise(self, generator):
        X = uniform(generator, 4, 5000, 2)
        truth = Planes().evaluate(None, X)
        problem = Planes(noise_std=0.3, seed=5)
        observed = problem.evaluate(None, X)
        noise = observed - truth
        # Standard errors 0.002 and 0.0015.
        assert abs(float(noise.mean())) < 0.01
        assert float(noise.std()) == pytest.approx(0.3, abs=0.008)
        assert torch.equal(problem.evaluate_true(None, X), truth)
        assert not torch.equal(problem.evaluate(None, X), observed)
        assert torch.equal(Planes(noise_std=0.3, seed=5).evaluate(None, X), observed)

    def test_tabulate(self):
        problem = Planes()
        table = problem.tabulate(4)
        assert table.candidates.shape == (16, 2)
        # The corners of the domain, and the last dimension fastest.
        assert table.candidates[[0, 3, 12]].tolist() == [[-1, 0], [-1, 3], [1, 0]]
        X = table.candidates.expand(4, 16, 2)
        assert torch.equal(table.evaluate(None, X), problem.evaluate(None, X))
        assert table.optimal_values.tolist() == [10.0, 11.0, 12.0, 13.0]
        noisy = problem.tabulate(4, noise_std=1.0, seed=3)
        assert torch.equal(noisy.values, table.values)
        assert not torch.equal(noisy.evaluate(None, X), table.values)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda p, X: p.evaluate(None, X[:3]), "shape 4 x k x 2"),
            (lambda p, X: p.evaluate(None, X[0]), "shape 4 x k x 2"),
            (lambda p, X: p.evaluate(None, X[..., :1]), r"got .* \(4, 1, 1\)"),
            (lambda p, X: p.evaluate(None, X.float()), "got torch.float32"),
            (lambda p, X: p.evaluate(None, 1.0), "got 1.0"),
            (lambda p, X: p.evaluate(None, X + 2), "within the bounds"),
            (lambda p, X: p.evaluate(None, X * torch.nan), "must be finite"),
            (lambda p, X: p.evaluate(1, X), "agents must be .* got 1"),
            (lambda p, X: p.evaluate(X[:, 0, 0], X), "got torch.float64"),
            (
                lambda p, X: p.evaluate(torch.tensor([4], device=CPU), X[:1]),
                r"below 4, got \[4\]",
            ),
            (
                lambda p, X: p.evaluate(torch.tensor([-1], device=CPU), X[:1]),
                "at least 0",
            ),
            (lambda p, X: p.tabulate(1), "grid_size"),
            (lambda p, X: Planes(dtype=torch.int64), "dtype"),
            (lambda p, X: Planes(noise_std=-1.0), "noise_std"),
        ],
    )
    def test_rejects(self, call, message, generator):
        with pytest.raises(InvalidArgumentError, match=message):
            call(Planes(), uniform(generator, 4, 1, 2))


class TestTable:
    def test_nearest(self, generator):
        """By brute force, after division by the steps of the grid."""
        bounds = [(-1.0, 1.0), (2.0, 5.0), (0.0, 0.1)]
        problem = TabulatedAgents(uniform(generator, 2, 3, 4, 2), bounds)
        assert problem.candidates.shape == (24, 3)
        lower, upper = problem.bounds
        X = lower + (upper - lower) * uniform(generator, 2, 50, 3)
        steps = (upper - lower) / torch.tensor([2, 3, 1], device=CPU)
        distances = torch.cdist(
            X / steps, (problem.candidates / steps).expand(2, 24, 3)
        )
        nearest = distances.argmin(dim=-1)
        assert torch.equal(problem.nearest(X), nearest)
        expected = problem.values.take_along_dim(nearest, dim=-1)
        assert torch.equal(problem.evaluate(None, X), expected)

    @pytest.mark.parametrize("size", [2, 7, 1000, 4001])
    def test_candidates_are_their_own_nearest(self, size, tkwargs):
        values = torch.arange(size, **tkwargs).expand(2, size)
        problem = TabulatedAgents(values, [(0.1, 0.7)])
        assert problem.dtype == tkwargs["dtype"]
        X = problem.candidates.expand(2, size, 1)
        assert torch.equal(problem.evaluate(None, X), values)
        assert problem.optimal_values.tolist() == [size - 1] * 2

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda v: TabulatedAgents(v, [(0.0, 1.0)] * 2), r"2 dimension\(s\)"),
            (lambda v: TabulatedAgents(v[:, :1], [(0.0, 1.0)]), "at least 2 points"),
            (lambda v: TabulatedAgents(v[:, 0], []), "values must be"),
            (lambda v: TabulatedAgents(v.long(), [(0.0, 1.0)]), "got torch.int64"),
            (lambda v: TabulatedAgents([1.0], [(0.0, 1.0)]), r"got \[1.0\]"),
            (lambda v: TabulatedAgents(v, [(1.0, 0.0)]), "bounds"),
        ],
    )
    def test_rejects(self, make, message):
        values = torch.zeros(2, 3, dtype=torch.float64, device=CPU)
        with pytest.raises(InvalidArgumentError, match=message):
            make(values)


class TestPerturbedGPDraws:
    def test_covariance_of_the_common_function(self):
        """Over 400 seeds: the kernel at a few lags, 4 standard errors of 0.07."""
        draws = torch.cat(
            [
                PerturbedGPDraws(
                    1,
                    grid_size=41,
                    lengthscale=0.1,
                    perturbation=0.0,
                    seed=s,
                    device=CPU,
                ).values
                for s in range(400)
            ]
        )
        covariance = draws.T.cov()
        grid = torch.linspace(0, 1, 41, dtype=torch.float64, device=CPU)
        kernel = (-0.5 * ((grid.unsqueeze(-1) - grid) / 0.1) ** 2).exp()
        assert (covariance - kernel).abs().max() < 0.28
        assert draws.mean(dim=0).abs().max() < 0.2

    @pytest.mark.parametrize("perturb", ["values", "function"])
    def test_perturbations(self, perturb, tkwargs):
        problem = PerturbedGPDraws(
            500, grid_size=200, perturbation=0.1, perturb=perturb, seed=1, **tkwargs
        )
        assert problem.values.dtype == tkwargs["dtype"]
        plain = PerturbedGPDraws(
            500, grid_size=200, perturbation=0.0, perturb=perturb, seed=1, **tkwargs
        )
        assert torch.equal(plain.values, plain.values[:1].expand(500, 200))
        own = problem.values - plain.values
        assert float(own.std()) == pytest.approx(0.1, abs=0.005)
        neighbours = float((own[:, 1:] * own[:, :-1]).mean()) / 0.01
        if perturb == "values":
            assert float(own.abs().max()) <= 0.1 * 3**0.5 * 1.0001
            assert abs(neighbours) < 0.02
        else:
            # exp(-h^2 / 2) with h = 1 / 199 / 0.03.
            assert neighbours == pytest.approx(0.986, abs=0.05)

    def test_defaults(self):
        problem = PerturbedGPDraws(device=CPU)
        assert (problem.num_agents, problem.dim) == (200, 1)
        assert problem.candidates.shape == (1000, 1)
        assert torch.equal(problem.optimal_values, problem.values.max(dim=-1).values)
        assert problem.optimal_values.unique().numel() == 200

    def test_seeds(self):
        first, second, other = (
            PerturbedGPDraws(3, grid_size=50, seed=s, device=CPU).values
            for s in (0, 0, 1)
        )
        assert torch.equal(first, second)
        assert not torch.isclose(first, other).any()

    def test_noise_is_not_the_function_again(self):
        """Functions and noise come from one seed: they must not share numbers."""
        problem = PerturbedGPDraws(
            1,
            grid_size=1000,
            lengthscale=1e-6,
            perturbation=0.0,
            noise_std=1.0,
            device=CPU,
        )
        X = problem.candidates.unsqueeze(0)
        truth = problem.evaluate_true(None, X)
        noise = problem.evaluate(None, X) - truth
        both = torch.cat([truth, noise])
        assert abs(float(both.corrcoef()[0, 1])) < 0.15

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"lengthscale": 0.0}, "lengthscale"),
            ({"perturbation": -1.0}, "perturbation"),
            ({"perturb": "noise"}, "perturb must be one of"),
            ({"grid_size": 1}, "grid_size"),
            ({"num_agents": 0}, "num_agents"),
        ],
    )
    def test_rejects(self, arguments, message):
        with pytest.raises(InvalidArgumentError, match=message):
            PerturbedGPDraws(**arguments, device=CPU)
