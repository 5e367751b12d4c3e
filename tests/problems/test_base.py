"""What holds for every problem: shapes, signs, chunks, seeds and bounds."""

import pytest
import torch
from botorch.exceptions import UnsupportedError

from benchmarks.problems import GPLengthscales, NoisyObservations, SVMLengthscales
from botorch_dp.exceptions import BotorchDPError, InvalidArgumentError
from botorch_dp.problems import HuberRegression, NormalLocation, PerRecordProblem

CPU = torch.device("cpu")

PROBLEMS = {
    "normal": lambda **kw: NormalLocation(23, 3, **kw),
    "huber": lambda **kw: HuberRegression(23, 3, **kw),
    "gp": lambda **kw: GPLengthscales(23, 3, num_train=11, **kw),
    "svm": lambda **kw: SVMLengthscales.synthetic(
        num_records=23, num_train=20, num_features=5, **kw
    ),
    "noisy": lambda seed=0, **kw: NoisyObservations(
        NormalLocation(23, 3, seed=seed, **kw), 0.1
    ),
}
with_gradients = {"normal", "huber", "noisy"}


@pytest.fixture(params=list(PROBLEMS))
def name(request):
    return request.param


def candidates(problem, b, seed=0):
    generator = torch.Generator(device="cpu").manual_seed(seed)
    unit = torch.rand(b, problem.dim, generator=generator, device=CPU).to(
        problem.bounds
    )
    lower, upper = problem.bounds
    return lower + unit * (upper - lower)


class TestEveryProblem:
    def test_attributes(self, name, tkwargs):
        problem = PROBLEMS[name](**tkwargs)
        assert isinstance(problem, PerRecordProblem)
        assert problem.num_records == 23
        assert problem.bounds.shape == (2, problem.dim)
        assert (problem.dtype, problem.device) == (tkwargs["dtype"], CPU)
        assert len(problem.transform) == problem.dim
        # What is to be searched in logarithms has to be positive.
        logs = [t == "log" for t in problem.transform]
        assert (problem.bounds[0, torch.tensor(logs, device=CPU)] > 0).all()
        assert (problem.optimal_x is None) == (problem.optimal_value is None)

    def test_losses(self, name, tkwargs):
        problem = PROBLEMS[name](**tkwargs)
        X = candidates(problem, 4)
        losses = problem.losses(X)
        assert losses.shape == (23, 4)
        assert losses.dtype == tkwargs["dtype"]
        assert losses.device == CPU
        assert losses.isfinite().all()
        again = PROBLEMS[name](**tkwargs)
        assert torch.equal(again(X), losses)
        true = problem.evaluate_true(X)
        assert true.shape == (4,)
        if name != "noisy":
            assert torch.allclose(true, losses.mean(dim=0), rtol=1e-5)
        # Candidates do not see each other.
        if name != "noisy":
            single = torch.cat([problem(x.unsqueeze(0)) for x in X], dim=-1)
            assert torch.allclose(single, losses, rtol=1e-4, atol=1e-6)

    def test_same_data_in_both_dtypes(self, name, double):
        X = candidates(PROBLEMS[name](**double), 2)
        single = PROBLEMS[name](dtype=torch.float32, device=CPU)
        losses = PROBLEMS[name](**double)(X)
        assert torch.allclose(single(X.float()).double(), losses, rtol=1e-3, atol=1e-4)

    def test_chunks(self, name, double):
        X = candidates(PROBLEMS[name](**double), 2)
        losses = PROBLEMS[name](**double).losses(X)
        for size in (1, 10, 23, 100):
            chunks = list(PROBLEMS[name](**double).chunks(X, size))
            assert all(len(chunk) == min(size, 23) for chunk in chunks[:-1])
            assert torch.allclose(torch.cat(chunks), losses, rtol=1e-10, atol=1e-12)
        with pytest.raises(InvalidArgumentError, match="chunk_size"):
            PROBLEMS[name](**double).chunks(X, 0)

    def test_negate(self, name, double):
        problem, negated = (
            PROBLEMS[name](**double),
            PROBLEMS[name](negate=True, **double),
        )
        X = candidates(problem, 2)
        assert torch.equal(negated.evaluate_true(X), -problem.evaluate_true(X))
        assert torch.equal(negated.losses(X), -problem.losses(X))
        if name in with_gradients:
            assert torch.equal(negated.gradients(X[0]), -problem.gradients(X[0]))
            assert negated.optimal_value == -problem.optimal_value
            assert torch.equal(negated.optimal_x, problem.optimal_x)

    def test_seeds(self, name, double):
        problem = PROBLEMS[name](seed=1, **double)
        X = candidates(problem, 2)
        losses = problem.losses(X)
        assert torch.equal(PROBLEMS[name](seed=1, **double).losses(X), losses)
        other = PROBLEMS[name](seed=2, **double).losses(X)
        assert not torch.isclose(other, losses).all(dim=0).any()
        with pytest.raises(InvalidArgumentError, match="seed"):
            PROBLEMS[name](seed=-1, **double)

    def test_global_random_state_is_left_alone(self, name, double):
        state = torch.get_rng_state()
        problem = PROBLEMS[name](**double)
        problem(candidates(problem, 1))
        assert torch.equal(torch.get_rng_state(), state)

    def test_gradients(self, name, double):
        problem = PROBLEMS[name](**double)
        x = candidates(problem, 1)[0]
        if name not in with_gradients:
            with pytest.raises(UnsupportedError, match="no closed form"):
                problem.gradients(x)
            return
        gradients = problem.gradients(x)
        step = 1e-6 * torch.eye(problem.dim, **double)
        for_each = problem.problem if name == "noisy" else problem
        difference = (for_each.losses(x + step) - for_each.losses(x - step)) / 2e-6
        assert gradients.shape == (23, problem.dim)
        assert torch.allclose(gradients, difference, atol=1e-6)

    def test_optimum(self, name, double):
        problem = PROBLEMS[name](**double)
        if problem.optimal_x is None:
            assert name in {"gp", "svm"}
            return
        assert problem.gradients(problem.optimal_x).mean(dim=0).norm() < 1e-8
        assert problem.optimal_value == pytest.approx(
            float(problem.evaluate_true(problem.optimal_x.unsqueeze(0)))
        )
        assert (
            problem.evaluate_true(candidates(problem, 500)) > problem.optimal_value
        ).all()

    def test_rejects_candidates(self, name, double):
        problem = PROBLEMS[name](**double)
        X = candidates(problem, 2)
        bad = {
            r"a b x \d+ tensor .* got torch\.float64 of shape \(\d+,\)": X[0],
            r"a b x \d+ tensor .* got torch\.float64 of shape \(2, 1\)": X[:, :1],
            r"a b x \d+ tensor .* of shape \(1, 2, \d+\)": X.unsqueeze(0),
            r"a b x \d+ tensor of torch\.float64, got \[": X.tolist(),
            r"a b x \d+ tensor .* of shape \(0, \d+\)": X[:0],
            r"torch\.float64, got torch\.float32": X.float(),
            r"X must be on cpu, got meta": X.to("meta"),
            "must be finite and within the bounds": X * torch.nan,
            "within the bounds": problem.bounds + torch.tensor(0.01, **double),
        }
        for message, value in bad.items():
            for call in (problem, problem.evaluate_true):
                with pytest.raises(InvalidArgumentError, match=message):
                    call(value)
            with pytest.raises(InvalidArgumentError, match=message):
                problem.chunks(value, 5)  # at once, not at the first chunk
        for value in (X, None):
            with pytest.raises(
                InvalidArgumentError, match=r"x must be .*\(one point\)"
            ):
                problem.gradients(value)
        with pytest.raises(InvalidArgumentError, match=r"torch\.float32"):
            problem.gradients(X[0].float())

    def test_rounding_at_the_bounds_is_forgiven(self, name, tkwargs):
        problem = PROBLEMS[name](**tkwargs)
        lower, upper = problem.bounds
        slack = 100 * torch.finfo(tkwargs["dtype"]).eps * (upper - lower)
        beyond = torch.stack([lower - slack, upper + slack])
        expected = PROBLEMS[name](**tkwargs)(problem.bounds)
        assert torch.equal(problem(beyond), expected)

    def test_dtype(self, name):
        with pytest.raises(InvalidArgumentError, match="dtype"):
            PROBLEMS[name](dtype=torch.float16, device=CPU)


class Constant(PerRecordProblem):
    def __init__(self, bounds=((0, 1),), transform=("linear",), **kwargs):
        super().__init__(num_records=2, bounds=bounds, transform=transform, **kwargs)

    def _loss_function(self, X):
        return lambda rows: X.new_ones(2, len(X))[rows]


class TestBase:
    @pytest.mark.parametrize(
        "bounds",
        [[], [(1.0, 0.0)], [(0.0, 0.0)], [(0.0, float("inf"))], [(0.0,)], None, [0, 1]],
    )
    def test_bounds(self, bounds):
        with pytest.raises(InvalidArgumentError, match="bounds must be a list"):
            Constant(bounds, device=CPU)

    def test_transform(self):
        with pytest.raises(InvalidArgumentError, match="must have 1 names"):
            Constant(transform=("log", "log"), device=CPU)
        with pytest.raises(InvalidArgumentError, match="'linear', 'log', 'identity'"):
            Constant(transform=("square",), device=CPU)

    def test_default_device(self):
        assert Constant().device == torch.get_default_device()

    def test_errors_are_the_librarys(self, double):
        with pytest.raises(BotorchDPError):
            Constant(**double).losses(torch.zeros(1, 2, **double))

    @pytest.mark.parametrize(
        "problem", [NormalLocation, HuberRegression, GPLengthscales]
    )
    def test_sizes(self, problem):
        with pytest.raises(InvalidArgumentError, match="num_records"):
            problem(0, device=CPU)
        with pytest.raises(InvalidArgumentError, match="dim"):
            problem(5, 0, device=CPU)
