"""The simulated accelerator does what CUDA does, and counts it."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from botorch_dp import DPGIBO, GDP
from tests import simulated_accelerator
from tests.devices import seeded

pytestmark = pytest.mark.usefixtures("accelerator")

DIFFERENT = "same device"


@pytest.fixture
def host():
    """The dtype and device of tensors on the host."""
    return {"dtype": torch.float64, "device": torch.device("cpu")}


@pytest.fixture
def X(double):
    return torch.rand(4, 3, generator=seeded(), **double)


def counted(call):
    with simulated_accelerator.count() as counts:
        call()
    return counts


class TestValues:
    def test_they_are_those_of_the_cpu(self, X, host):
        cpu = X.cpu()
        assert (X.device.type, cpu.device.type) == ("sim", "cpu")
        for compute in [
            lambda Z: torch.linalg.cholesky(Z @ Z.mT + torch.eye(4, **like(Z))),
            lambda Z: torch.cat([Z, Z.flip(0)]).cumsum(dim=0).softmax(dim=-1),
            lambda Z: Z.unsqueeze(1).expand(-1, 2, -1)[..., :2].sum(dim=(0, 1)),
            lambda Z: torch.where(Z > 0.5, Z, 0.0).max(dim=0).values,
        ]:
            assert compute(X).device == X.device
            assert compute(X).tolist() == compute(cpu).tolist()

    def test_gradients_are_too(self, X):
        def gradient(Z):
            Z = Z.detach().requires_grad_()
            (Z @ Z.mT).exp().logsumexp(dim=-1).prod().backward()
            return Z.grad

        assert gradient(X).device == X.device
        # Autograd may add up the parts of a gradient in another order.
        assert torch.allclose(gradient(X).cpu(), gradient(X.cpu()), rtol=1e-14)

    def test_writing_to_a_view_writes_to_its_base(self, X):
        X[1:, 0].mul_(0.0)
        X[0] = 2.0
        assert X[:, 0].tolist() == [2.0, 0.0, 0.0, 0.0]

    def test_inference_mode(self, X):
        with torch.inference_mode():
            Y = (X[1:].mT @ X[1:]).to(torch.float32).cpu()
        assert Y.tolist() == (X[1:].mT @ X[1:]).to(torch.float32).tolist()
        assert Y.is_inference()

    def test_shapes_that_change_in_place(self, X):
        expected = X.tolist()
        assert X.unsqueeze_(0).shape == (1, 4, 3)
        assert X.squeeze_(0).mT.tolist() == X.t_().tolist()
        assert X.t_().tolist() == expected
        result = torch.empty(0, dtype=X.dtype, device=X.device)
        assert torch.add(X, X, out=result).tolist() == (2 * X).tolist()
        assert result.shape == X.shape

    def test_torch_func(self, X):
        def value(x):
            return x.square().sum() + x.prod()

        for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
            found = torch.func.vmap(transform(value))(X)
            expected = torch.func.vmap(transform(value))(X.cpu())
            assert found.device == X.device
            assert torch.allclose(found.cpu(), expected)

    def test_text(self, X):
        assert f"{X[0, 0]:.3f}" == f"{X.cpu()[0, 0]:.3f}"
        assert "device='sim:0'" in repr(X)
        assert (
            torch.tensor([X[0, 0], X[0, 1]], device="cpu").tolist() == X[0, :2].tolist()
        )


class TestDevices:
    def test_default_is_the_host(self, request):
        meta = request.config.getoption("--meta-device")
        assert torch.zeros(1).device.type == ("meta" if meta else "cpu")

    @pytest.mark.parametrize(
        "mix",
        [
            lambda X, Y: X + Y,
            lambda X, Y: Y + X,
            lambda X, Y: Y + X[0, 0],
            lambda X, Y: X @ Y.mT,
            lambda X, Y: torch.cat([X, Y]),
            lambda X, Y: torch.stack([X[0, 0], Y[0, 0]]),
            lambda X, Y: torch.equal(X[0, 0], Y[0, 0]),
            lambda X, Y: Y[X[:, 0].long()],
            lambda X, Y: Y[0, 0].add_(X[0, 0]),
            lambda X, Y: torch.add(Y, Y, out=X),
            lambda X, Y: X + Y.to("meta")[0, 0],
        ],
    )
    def test_they_do_not_mix(self, mix, X, host):
        with pytest.raises(RuntimeError, match=DIFFERENT):
            mix(X, torch.ones(4, 3, **host))

    def test_numbers_of_the_host_do(self, X, host):
        two = torch.tensor(2.0, **host)
        counts = counted(lambda: [X * two, two - X, torch.where(X > 0.5, two, X)])
        assert (X * two).tolist() == (X + X).tolist()
        assert counts.transfers == 0

    def test_indices_of_the_host_do(self, X):
        rows = torch.tensor([2, 0], device="cpu")
        assert X[rows].tolist() == X[[2, 0]].tolist() == [X.tolist()[i] for i in (2, 0)]
        X[rows] = 7.0
        assert X[:, 0].tolist().count(7.0) == 2

    def test_numpy_raises(self, X):
        for call in (lambda: X.numpy(), lambda: np.asarray(X), lambda: np.exp(X)):
            with pytest.raises(TypeError, match=r"can't convert sim:0.*Tensor.cpu"):
                call()
        assert np.array_equal(X.numpy(force=True), X.cpu().numpy())

    def test_data_of_another_dtype(self, X):
        module = torch.nn.Linear(3, 2, device="cpu").to("sim").double()
        assert module.weight.dtype == module(X).dtype == torch.float64
        assert module.weight.tolist() == module.weight.cpu().tolist()


class TestRandomNumbers:
    def test_a_generator_of_the_host_raises(self, double):
        with pytest.raises(RuntimeError, match=r"'sim' device type.*found 'cpu'"):
            torch.rand(3, generator=torch.Generator("cpu"), **double)
        with pytest.raises(RuntimeError, match=r"'sim' device type.*found 'cpu'"):
            torch.zeros(3, **double).normal_(generator=torch.Generator("cpu"))

    def test_a_generator_draws_the_numbers_of_the_host(self, double, host):
        plain = torch.Generator("cpu").manual_seed(5)
        draws = torch.randn(9, generator=seeded(5), **double)
        assert seeded(5).device == draws.device
        assert draws.tolist() == torch.randn(9, generator=plain, **host).tolist()

    def test_the_device_has_a_stream_of_its_own(self, X):
        torch.manual_seed(3)
        state = torch.get_rng_state()
        first = torch.rand_like(X)
        assert torch.equal(torch.get_rng_state(), state)
        assert not torch.equal(torch.rand_like(X), first)
        torch.manual_seed(3)
        assert torch.equal(torch.rand_like(X), first)

    def test_fork_rng(self, X):
        with torch.random.fork_rng(devices=[0], device_type="sim"):
            first = torch.rand_like(X)
        assert torch.equal(torch.rand_like(X), first)


class TestCopies:
    def test_deepcopy(self, X):
        X.requires_grad_()
        X.sum().backward()
        twin, same = copy.deepcopy([X, X])
        assert twin is same
        assert twin.requires_grad
        assert twin.grad is not X.grad
        with torch.no_grad():
            twin.mul_(2.0)
        assert twin.tolist() == (X + X).tolist()
        with pytest.raises(RuntimeError, match="leaf"):
            copy.deepcopy(X + 1)

    def test_parameters_remain_parameters(self, X):
        parameter = torch.nn.Parameter(X)
        for twin in (copy.deepcopy(parameter), saved(parameter), pickled(parameter)):
            assert isinstance(twin, torch.nn.Parameter)
            assert twin.device == X.device
            assert twin.tolist() == X.tolist()

    def test_files_remember_the_device(self, X):
        for part in (X, X[1:, 1], X.mT):
            assert saved(part).device == pickled(part).device == X.device
            assert saved(part).tolist() == pickled(part).tolist() == part.tolist()

    @pytest.mark.parametrize("target", ["cpu", torch.device("cpu"), "sim"])
    def test_map_location(self, X, target):
        for part in (X, X.cpu()):
            loaded = saved(part, map_location=target)
            assert loaded.device.type == torch.device(target).type
            assert loaded.tolist() == X.tolist()


class TestCounts:
    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            (lambda X: X[0, 0].item(), (1, 0, 0)),
            (lambda X: bool(X[0, 0] > 3), (1, 0, 0)),
            (lambda X: torch.equal(X, X), (1, 0, 0)),
            (lambda X: torch.allclose(X, X), (1, 0, 0)),
            (lambda X: X.nonzero(), (1, 0, 0)),
            (lambda X: X.unique(), (1, 0, 0)),
            (lambda X: X.masked_select(X > 0.5), (1, 0, 0)),
            (lambda X: X[X > 0.5], (1, 0, 0)),
            (lambda X: torch.linalg.cholesky(X.mT @ X), (1, 0, 0)),
            (lambda X: torch.linalg.cholesky_ex(X.mT @ X), (0, 0, 0)),
            (lambda X: X.masked_fill(X > 0.5, 1.0), (0, 0, 0)),
            (lambda X: X.__setitem__(X > 0.5, 1.0), (0, 0, 0)),
            (lambda X: X.__setitem__(X > 2.0, X[:0, 0]), (1, 0, 0)),
            (lambda X: X.repeat_interleave(2, dim=0), (0, 0, 0)),
            (lambda X: X.repeat_interleave(X[:, 0].long(), dim=0), (1, 0, 0)),
            (
                lambda X: X.repeat_interleave(
                    torch.ones_like(X[:, 0]).long(), dim=0, output_size=4
                ),
                (0, 0, 0),
            ),
            (lambda X: X[torch.tensor([1, 0], device="cpu")], (0, 1, 0)),
            (lambda X: X[torch.ones(4, device="cpu").bool()], (0, 1, 0)),
            (lambda X: X[[1, 0]], (0, 1, 0)),
            (lambda X: torch.tensor([1.0, 2.0], device="sim"), (0, 1, 0)),
            (lambda X: torch.zeros(3, device="cpu").to("sim"), (0, 1, 0)),
            (lambda X: X[0].copy_(torch.zeros(3, device="cpu")), (0, 1, 0)),
            (lambda X: torch.zeros(3, device="sim"), (0, 0, 0)),
            (lambda X: X.to("sim"), (0, 0, 0)),
            (lambda X: X.to(torch.float32), (0, 0, 0)),
            (lambda X: X.cpu(), (1, 0, 1)),
            (lambda X: X.tolist(), (1, 0, 1)),
            (lambda X: torch.zeros(4, 3, device="cpu").copy_(X), (1, 0, 1)),
            (lambda X: pickle.dumps(X), (1, 0, 1)),
            (lambda X: torch.sim.synchronize(), (1, 0, 0)),
        ],
    )
    def test_what_an_accelerator_pays_for(self, X, call, expected):
        counts = counted(lambda: call(X))
        assert (
            counts.synchronizations,
            counts.to_device,
            counts.to_host,
        ) == expected
        assert counts.transfers == sum(expected[1:])

    def test_operations_and_kernels(self, X):
        counts = counted(lambda: (X.mT[:2] @ X).exp())
        assert (counts.operations, counts.kernels) == (4, 2)

    def test_blocks_nest(self, X):
        with simulated_accelerator.count() as outer:
            X.exp()
            with simulated_accelerator.count() as inner:
                X.exp()
        X.exp()
        assert (outer.kernels, inner.kernels) == (2, 1)


def test_results_of_a_run_are_those_of_the_cpu(X, host):
    def run(records):
        like = {"dtype": records.dtype, "device": records.device}
        generator = seeded(1)
        if records.device.type == "cpu":
            generator = torch.Generator("cpu").manual_seed(1)
        bounds = torch.stack([torch.zeros(3, **like), torch.ones(3, **like)])
        optimizer = DPGIBO(bounds, 4, GDP(1.0), 3, 1.0, generator=generator)
        for _ in range(3):
            points = optimizer.ask()
            optimizer.tell((points - records.unsqueeze(1)).square().sum(dim=-1))
        return optimizer.history

    ours, theirs = run(X), run(X.cpu())
    # Records come in blocks of other sizes, which are rounded differently.
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.x.cpu(), other.x, rtol=1e-12, atol=0)
    assert {step.x.device for step in ours} == {X.device}


def test_importing_it_changes_nothing():
    code = (
        "import torch; import tests.simulated_accelerator; "
        "assert not hasattr(torch, 'sim') and not torch.accelerator.is_available()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def like(X):
    return {"dtype": X.dtype, "device": X.device}


def pickled(x):
    return pickle.loads(pickle.dumps(x))


def saved(x, **kwargs):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True, **kwargs)
