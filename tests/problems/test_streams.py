"""What holds for every stream: shapes, random access, seeds, gradients and errors."""

import hashlib

import numpy as np
import pytest
import torch
from botorch.exceptions import UnsupportedError

from benchmarks.problems import (
    DATASETS,
    CreditCardStream,
    Dataset,
    FriedmanStream,
    SineStream,
    UberStream,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import LinearStream, LogisticStream, ReLUStream, StreamProblem
from botorch_dp.problems.streams import (
    check_seed,
    chunk_normals,
    numbered_generator,
)

CPU = torch.device("cpu")

STREAMS = {
    "linear": lambda folder, **kw: LinearStream(3, **kw),
    "abrupt": lambda folder, **kw: LinearStream(5, drift="abrupt", **kw),
    "smooth": lambda folder, **kw: LinearStream(5, drift="smooth", **kw),
    "unweighted": lambda folder, **kw: LinearStream(3, mallows=False, **kw),
    "logistic": lambda folder, **kw: LogisticStream(3, **kw),
    "relu": lambda folder, **kw: ReLUStream(3, **kw),
    "sine": lambda folder, **kw: SineStream(series_length=6, **kw),
    "friedman": lambda folder, **kw: FriedmanStream(series_length=6, **kw),
    "uber": lambda folder, **kw: UberStream(folder, **kw),
    "credit": lambda folder, **kw: CreditCardStream(folder, **kw),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up rows under the names of the real ones."""
    path = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    n = 1300
    labels = generator.random(n) < 0.1
    arrays = {
        "uber": {
            "fare_amount": generator.uniform(3, 60, n).astype(np.float32),
            "pickup_longitude": generator.uniform(-74.1, -73.9, n).astype(np.float32),
            "pickup_latitude": generator.uniform(40.6, 40.9, n).astype(np.float32),
            "dropoff_longitude": generator.uniform(-74.1, -73.9, n).astype(np.float32),
            "dropoff_latitude": generator.uniform(40.6, 40.9, n).astype(np.float32),
            "passenger_count": generator.integers(1, 7, n).astype(np.int8),
            "pickup_unix": generator.integers(1_230_000_000, 1_430_000_000, n),
        },
        "creditcard": {
            "V": generator.normal(size=(n, 28)).astype(np.float32) + labels[:, None],
            "Class": labels.astype(np.int8),
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, columns in arrays.items():
            file = path / f"{name}.npz"
            np.savez(file, **columns)
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            patch.setitem(DATASETS, name, Dataset(file.name, digest, "made up"))
        yield path


@pytest.fixture(params=list(STREAMS))
def make(request, folder):
    def make_stream(**kwargs):
        defaults = {"num_replications": 4, "num_steps": 1200, "device": CPU}
        return STREAMS[request.param](folder, **{**defaults, **kwargs})

    make_stream.name = request.param
    return make_stream


def points(stream, *shape, seed=0):
    generator = torch.Generator(device="cpu").manual_seed(seed)
    draws = torch.randn(*shape, stream.dim, generator=generator, device=CPU)
    return (draws / 2).to(stream.initial_x)


class TestEveryStream:
    def test_attributes(self, make, tkwargs):
        stream = make(**tkwargs)
        assert isinstance(stream, StreamProblem)
        assert (stream.num_replications, stream.num_steps) == (4, 1200)
        assert (stream.dtype, stream.device) == (tkwargs["dtype"], CPU)
        assert stream.initial_x.shape == (stream.dim,)
        assert stream.initial_x.dtype == tkwargs["dtype"]
        if stream.optimal_x is not None:
            assert stream.optimal_x.shape == (stream.dim,)
            assert stream.optimal_x.dtype == tkwargs["dtype"]

    def test_losses(self, make, tkwargs):
        stream = make(**tkwargs)
        X = points(stream, 4, 3)
        losses = stream.losses(5, X)
        assert losses.shape == (4, 3)
        assert losses.dtype == tkwargs["dtype"]
        assert losses.isfinite().all()
        # Points do not see each other, nor do replications.
        for j in range(3):
            assert torch.allclose(
                stream.losses(5, X[:, j : j + 1]), losses[:, j : j + 1], rtol=1e-5
            )
        moved = X.clone()
        moved[0] += 1
        again = stream.losses(5, moved)
        assert torch.equal(again[1:], losses[1:])
        assert not torch.allclose(again[0], losses[0])

    def test_shared_points(self, make, double):
        stream = make(**double)
        X = points(stream, 8)
        losses = stream.losses(2, X)
        assert torch.equal(losses, stream.losses(2, X.expand(4, 8, -1)))
        assert len(losses.unique(dim=0)) == 4  # each replication has its own user

    def test_one_replication_may_go_without_its_dimension(self, make, double):
        stream = make(num_replications=1, **double)
        X = points(stream, 3)
        losses = stream.losses(2, X)
        assert losses.shape == (3,)
        assert torch.equal(losses, stream.losses(2, X.unsqueeze(0))[0])
        gradient = stream.gradients(2, X[0])
        assert gradient.shape == (stream.dim,)
        assert torch.equal(gradient, stream.gradients(2, X[:1])[0])

    def test_same_records_in_both_dtypes(self, make, double):
        stream, single = make(**double), make(dtype=torch.float32)
        X = points(stream, 4, 3)
        for values, rough in [
            (stream.losses(9, X), single.losses(9, X.float())),
            (stream.gradients(9, X[:, 0]), single.gradients(9, X[:, 0].float())),
        ]:
            assert rough.dtype == torch.float32
            assert torch.allclose(rough.double(), values, rtol=1e-4, atol=1e-4)

    def test_gradients_against_autograd(self, make, double):
        stream = make(**double)
        for step in (1, 2, 700):
            x = points(stream, 4, seed=step).requires_grad_()
            total = stream.losses(step, x.unsqueeze(1)).sum()
            (expected,) = torch.autograd.grad(total, x)
            gradients = stream.gradients(step, x.detach())
            assert gradients.shape == (4, stream.dim)
            assert torch.allclose(gradients, expected, rtol=1e-9, atol=1e-10)
            assert expected.abs().max() > 0

    def test_random_access_is_sequential_access(self, make, double):
        ordered, other = make(**double), make(**double)
        X = points(ordered, 4, 2)
        size = ordered.chunk_size
        steps = sorted({1, 2, size - 1, size, size + 1, 2 * size, 1200})
        expected = {step: ordered.losses(step, X) for step in steps}
        for step in [*reversed(steps), *steps]:
            assert torch.equal(other.losses(step, X), expected[step])
        # No two steps have the same users.
        values = torch.stack(list(expected.values()))
        assert len(values.unique(dim=0)) == len(steps)

    def test_memory_is_constant(self, make, double):
        stream = make(**double)
        for step in range(1, 1201, 50):
            stream.gradients(step, points(stream, 4))
            assert len(stream._records) <= stream.chunk_size

    def test_replications_do_not_depend_on_their_number(self, make, double):
        stream, more = make(**double), make(num_replications=7, **double)
        X = points(stream, 2)
        for step in (1, 600):
            assert torch.equal(more.losses(step, X)[:4], stream.losses(step, X))

    def test_seeds(self, make, double):
        stream = make(seed=1, **double)
        X = points(stream, 2)
        losses = stream.losses(3, X)
        assert torch.equal(make(seed=1, **double).losses(3, X), losses)
        other = make(seed=2, **double).losses(3, X)
        assert not torch.isclose(other, losses).any()
        with pytest.raises(InvalidArgumentError, match="seed must be a whole number"):
            make(seed=-1)

    def test_global_random_state_is_left_alone(self, make, double):
        state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
        make(**double).losses(1, points(make(**double), 1))
        assert torch.equal(torch.get_rng_state(), state)
        assert (np.random.get_state()[1] == numpy_state).all()

    def test_gradient_bound(self, make, double):
        stream = make(**double)
        if make.name in {"sine", "friedman", "unweighted"}:
            assert stream.gradient_bound is None
            return
        assert stream.gradient_bound == 2**0.5
        norms = torch.stack(
            [
                stream.gradients(step, 20 * points(stream, 4)).norm(dim=-1)
                for step in range(1, 500)
            ]
        )
        assert 1.2 < norms.max() <= stream.gradient_bound * (1 + 1e-12)

    def test_rejects_steps(self, make, double):
        stream = make(**double)
        x = points(stream, 4)
        stream.gradients(1200, x)
        for step, message in {
            0: "step must be a whole number of at least 1, got 0",
            -3: "got -3",
            1201: "step must be at most num_steps, 1200, got 1201",
            2.0: "step must be a whole number",
            True: "step must be a whole number",
            10**6: "at most num_steps",
        }.items():
            with pytest.raises(InvalidArgumentError, match=message):
                stream.gradients(step, x)
            with pytest.raises(InvalidArgumentError, match=message):
                stream.losses(step, x)
            with pytest.raises(InvalidArgumentError, match=message):
                stream.optimal_x_at(step)
        assert torch.equal(stream.gradients(np.int64(2), x), stream.gradients(2, x))

    def test_rejects_points(self, make, double):
        stream = make(**double)
        X = points(stream, 4, 2)
        for value in (X[:3], X[..., :1], X[0, 0], X[None], X.float(), None, [1.0]):
            with pytest.raises(InvalidArgumentError, match=r"X must be a .* 4 x M x"):
                stream.losses(1, value)
        x = X[:, 0]
        for value in (x[:3], x[:, :1], x[0], X, x.float(), None):
            with pytest.raises(InvalidArgumentError, match=r"x must be a .* 4 x \d, "):
                stream.gradients(1, value)

    def test_rejects_sizes(self, make):
        with pytest.raises(InvalidArgumentError, match="num_replications"):
            make(num_replications=0)
        with pytest.raises(InvalidArgumentError, match="num_steps"):
            make(num_steps=0)
        with pytest.raises(InvalidArgumentError, match="dtype"):
            make(dtype=torch.float16)

    def test_optimum(self, make, double):
        stream = make(**double)
        if make.name in {"sine", "friedman", "uber", "credit"}:
            with pytest.raises(UnsupportedError, match="does not know its optimum"):
                stream.optimal_x_at(1)
        elif make.name in {"abrupt", "smooth"}:
            assert stream.optimal_x is None
            assert stream.optimal_x_at(1).tolist() == [1.0, 2.0, 1.0, 0.0, 0.0]
        else:
            assert torch.equal(stream.optimal_x_at(77), stream.optimal_x)
            assert stream.optimal_x.tolist() == [1.0] * 3


@pytest.mark.parametrize("name", ["linear", "logistic", "relu", "sine", "friedman"])
def test_endless(name, double):
    stream = STREAMS[name](None, num_replications=2, **double)
    assert stream.num_steps is None
    assert stream.losses(10**9, points(stream, 1)).isfinite().all()


def test_default_device():
    assert LinearStream(2).device == torch.get_default_device()
    assert ReLUStream(2).device == torch.get_default_device()


class TestSeeding:
    def test_no_collisions(self):
        # Seeds and numbers that concatenated words, sums or 32 bits would confuse.
        numbers = [0, 1, 2, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
        draws = {
            numbered_generator(seed, number).integers(2**63)
            for seed in numbers
            for number in numbers
        }
        assert len(draws) == len(numbers) ** 2

    def test_not_of_a_generator_seeded_directly(self):
        stream = LinearStream(3, seed=5, device=CPU)
        inputs = stream._record(1)[0].flatten()
        for seed in range(10):
            generator = torch.Generator(device="cpu").manual_seed(seed)
            draws = torch.randn(3, generator=generator, dtype=torch.float64, device=CPU)
            assert not torch.isclose(draws, inputs).any()

    def test_check_seed(self):
        assert check_seed(2**64 - 1) == 2**64 - 1
        with pytest.raises(InvalidArgumentError, match=r"seed must be below 2\^64"):
            check_seed(2**64)

    def test_chunk_normals(self):
        draws = chunk_normals(3, 4, num_replications=40, num_steps=100, size=5)
        assert draws.shape == (100, 40, 5)
        assert draws.dtype == torch.float64
        assert draws.device == CPU
        assert abs(float(draws.mean())) < 5 / 20000**0.5
        assert abs(float(draws.var()) - 1) < 5 * (2 / 20000) ** 0.5
        assert len(draws.unique()) == draws.numel()
