"""The prior over data sets and points: against its definition, and draws from it."""

import itertools

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.kernels.dataset_kernel import (
    DatasetKernel,
    check_correlation,
    dataset_correlation,
    sample_neighbours,
)
from tests.devices import DEVICE, seeded


def make_kernel(dtype=torch.float64):
    with DEVICE:
        kernel = ScaleKernel(MaternKernel(nu=2.5)).to(dtype)
    kernel.outputscale = torch.tensor(2.25, dtype=dtype, device=DEVICE)
    return kernel.requires_grad_(False)


def make_dataset_kernel(*args, **kwargs):
    with DEVICE:  # GPyTorch's constructor makes tensors
        return DatasetKernel(*args, **kwargs)


def all_datasets(num_values, num_records):
    rows = list(itertools.product(range(num_values), repeat=num_records))
    return torch.tensor(rows, device=DEVICE)


class TestCorrelation:
    def test_powers(self):
        assert dataset_correlation(0, correlation=0.3) == 1.0
        assert dataset_correlation(1, correlation=0.3) == 0.3
        assert dataset_correlation(4, correlation=0.5) == 0.0625
        assert dataset_correlation(0, correlation=0.0) == 1.0
        assert dataset_correlation(1, correlation=0.0) == 0.0

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", True, None])
    def test_bad_correlations(self, value, double):
        match = "rho must be from 0 to 1, got "
        with pytest.raises(InvalidArgumentError, match=match):
            check_correlation("rho", value)
        for make in (
            lambda: dataset_correlation(1, correlation=value),
            lambda: make_dataset_kernel(make_kernel(), correlation=value),
            lambda: sample_neighbours(
                make_kernel(), torch.zeros(2, 1, **double), correlation=value
            ),
        ):
            with pytest.raises(InvalidArgumentError, match="correlation must be"):
                make()

    @pytest.mark.parametrize("value", [-1, 0.5, True])
    def test_bad_counts(self, value):
        with pytest.raises(InvalidArgumentError, match="num_different must be"):
            dataset_correlation(value, correlation=0.5)


class TestDatasetKernel:
    @pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9, 0.999])
    def test_positive_definite_on_all_data_sets(self, correlation):
        """All 64 data sets of 3 records with 4 values each.

        The smallest eigenvalue is (1 - rho)^m: the rest of the expansion is singular.
        """
        kernel = make_dataset_kernel(
            make_kernel(), all_datasets(4, 3), correlation=correlation
        )
        eigenvalues = torch.linalg.eigvalsh(kernel.correlations)
        assert eigenvalues.min().item() == pytest.approx(
            (1 - correlation) ** 3, abs=1e-12
        )

    def test_negative_correlations_are_no_kernel(self):
        # The reason why they are refused: four values of one record, all neighbours.
        matrix = torch.full((4, 4), -0.4, dtype=torch.float64, device=DEVICE)
        matrix.fill_diagonal_(1.0)
        assert torch.linalg.eigvalsh(matrix).min() < 0

    def test_definition(self, double, generator):
        datasets = torch.tensor(
            [[[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 9], [5, 6]], [[0, 0]] * 3],
            device=DEVICE,
        )
        base, rho = make_kernel(), 0.7
        kernel = make_dataset_kernel(base, datasets, correlation=rho)
        X1 = torch.rand(5, 2, generator=generator, **double)
        X2 = torch.rand(4, 2, generator=generator, **double)
        first = torch.tensor([0, 1, 2, 0, 1], **double)
        second = torch.tensor([1, 1, 2, 0], **double)
        different = [[0, 1, 3], [1, 0, 3], [3, 3, 0]]
        value = kernel(
            torch.cat([first.unsqueeze(-1), X1], dim=-1),
            torch.cat([second.unsqueeze(-1), X2], dim=-1),
        ).to_dense()
        points = base(X1, X2).to_dense()
        for i, j in itertools.product(range(5), range(4)):
            power = different[int(first[i])][int(second[j])]
            assert value[i, j].item() == pytest.approx(
                rho**power * points[i, j].item(), rel=1e-12
            )

    def test_two_neighbours_by_default(self, tkwargs, generator):
        base = make_kernel(tkwargs["dtype"])
        kernel = make_dataset_kernel(base, correlation=0.8)
        X = torch.rand(3, 6, 2, generator=generator, **tkwargs)  # a batch
        X[..., 0] = (X[..., 0] > 0.5).to(X)
        value = kernel(X).to_dense()
        assert value.dtype == tkwargs["dtype"]
        same = X[..., :1] == X[..., :1].mT
        factor = torch.where(same, 1.0, torch.tensor(0.8, **tkwargs))
        assert torch.allclose(value, factor * base(X[..., 1:]).to_dense())
        assert torch.allclose(
            kernel(X, diag=True), value.diagonal(dim1=-2, dim2=-1), atol=1e-6
        )

    @pytest.mark.default_device
    def test_in_a_model(self, double, generator):
        """What V tells about V': the mean times rho, the variance reduction rho^2."""
        rho, base = 0.8, make_kernel()
        X = torch.rand(6, 2, generator=generator, **double)
        Y = X.sin().sum(dim=-1, keepdim=True)
        at = torch.rand(5, 2, generator=generator, **double)

        def posterior(kernel, inputs, points):
            model = SingleTaskGP(
                inputs,
                Y,
                train_Yvar=torch.full_like(Y, 0.01),
                covar_module=kernel,
                mean_module=ZeroMean(),
                outcome_transform=None,
            )
            return model.posterior(points)

        alone = posterior(base, X, at)
        other = posterior(
            make_dataset_kernel(base, correlation=rho),
            torch.cat([torch.zeros(6, 1, **double), X], dim=-1),
            torch.cat([torch.ones(5, 1, **double), at], dim=-1),
        )
        assert torch.allclose(other.mean, rho * alone.mean)
        assert torch.allclose(2.25 - other.variance, rho**2 * (2.25 - alone.variance))

    @pytest.mark.parametrize(
        "datasets",
        [
            [[0], [1]],
            torch.zeros(3, device=DEVICE),
            torch.zeros(1, 1, 1, 1, device=DEVICE),
            torch.zeros(2, 0, device=DEVICE),
        ],
    )
    def test_bad_data_sets(self, datasets):
        with pytest.raises(InvalidArgumentError, match="datasets must"):
            make_dataset_kernel(make_kernel(), datasets, correlation=0.5)

    @pytest.mark.parametrize("index", [-1.0, 2.0])
    def test_bad_index(self, index, double):
        kernel = make_dataset_kernel(make_kernel(), correlation=0.5)
        with pytest.raises(InvalidArgumentError, match="from 0 to 1"):
            kernel(torch.tensor([[index, 0.3]], **double)).to_dense()


class TestSampleNeighbours:
    @pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
    def test_covariance(self, correlation, double, generator):
        """20,000 pairs at 6 points.

        An entry of a sample covariance has a standard error of at most
        s^2 sqrt(2 / n) = 0.0225 (s^2 = 2.25); 5 of them are allowed. A correlation off
        by 0.06, or a variance off by 6 %, fails.
        """
        base = make_kernel()
        X = torch.rand(6, 2, generator=generator, **double)
        f, neighbour = sample_neighbours(
            base,
            X,
            correlation=correlation,
            num_samples=20_000,
            generator=generator,
        )
        both = torch.cat([f, neighbour], dim=-1)
        # The product kernel, written as one kernel on pairs.
        index = torch.tensor([0.0] * 6 + [1.0] * 6, **double).unsqueeze(-1)
        pairs = torch.cat([index, X.repeat(2, 1)], dim=-1)
        kernel = make_dataset_kernel(base, correlation=correlation)
        expected = kernel(pairs).to_dense()
        error = (both.mT @ both / len(both) - expected).abs().max()
        assert error < 5 * 2.25 * (2 / 20_000) ** 0.5
        assert (both.mean(dim=0).abs() < 5 * 1.5 / 20_000**0.5).all()

    def test_no_jitter(self, double, generator):
        # One point three times: its values agree to rounding, jitter would show.
        X = torch.tensor([[0.3], [0.3], [0.3], [0.9]], **double)
        f, neighbour = sample_neighbours(
            make_kernel(), X, correlation=0.5, num_samples=100, generator=generator
        )
        for values in (f, neighbour):
            assert (values[:, 0] - values[:, 1]).abs().max() < 1e-6
        assert (f[:, 0] - f[:, 3]).abs().max() > 0.1

    def test_correlation_one_is_the_same_function(self, double, generator):
        X = torch.rand(5, 1, generator=generator, **double)
        f, neighbour = sample_neighbours(
            make_kernel(), X, correlation=1.0, generator=generator
        )
        assert torch.equal(f, neighbour)

    def test_batches_dtypes_and_seeds(self, tkwargs):
        X = torch.rand(3, 7, 2, generator=seeded(0), **tkwargs)
        draws = [
            sample_neighbours(
                make_kernel(tkwargs["dtype"]),
                X,
                correlation=0.9,
                num_samples=4,
                generator=seeded(seed),
            )
            for seed in (1, 1, 2)
        ]
        for values in draws[0]:
            assert values.shape == (4, 3, 7)
            assert values.dtype == tkwargs["dtype"]
            assert not values.requires_grad
        assert torch.equal(draws[0][1], draws[1][1])
        assert not torch.equal(draws[0][1], draws[2][1])

    @pytest.mark.parametrize(
        "points",
        [None, torch.zeros(3, device=DEVICE), torch.zeros(3, 1, device=DEVICE).long()],
    )
    def test_bad_points(self, points):
        with DEVICE:
            kernel = RBFKernel()
        with pytest.raises(InvalidArgumentError, match="points must be"):
            sample_neighbours(kernel, points, correlation=0.5)

    def test_bad_number_of_samples(self, double):
        with pytest.raises(InvalidArgumentError, match="num_samples must be"):
            sample_neighbours(
                make_kernel(),
                torch.zeros(2, 1, **double),
                correlation=0.5,
                num_samples=0,
            )
