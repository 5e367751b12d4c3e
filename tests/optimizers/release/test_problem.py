"""The public facts of a release: candidates, kernels, clipping."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_dp import GradientGP
from botorch_dp.exceptions import (
    InvalidArgumentError,
)
from tests.optimizers.problems import (
    DEVICE,
    DOUBLE,
    unit_box,
)
from tests.optimizers.release.kusner.problems import make as make_published
from tests.optimizers.release.problems import candidates, make


class TestClip:
    def test_losses_are_clipped_not_rescaled(self):
        # Hostile records count as the end of the range, silently.
        values = []
        for hostile in (1.0, 1e30, float("inf"), float("nan")):
            opt = make(n=10, num_steps=1, candidates=candidates(2), scoring="evaluated")
            losses = torch.full((10, 1), 0.5, **DOUBLE)
            losses[0] = hostile
            opt.ask()
            opt.tell(losses)
            values.append(opt.result().value)
        assert len(set(values)) == 1

    def test_by_hand(self):
        problem = make(loss_range=(-1.0, 3.0)).problem
        losses = torch.tensor(
            [-2.0, -1.0, 0.5, 3.0, 9.0, math.inf, -math.inf, math.nan],
            dtype=torch.float32,
            device=DEVICE,
        )
        expected = [0.0, 0.0, 1.5, 4.0, 4.0, 4.0, 0.0, 4.0]
        assert problem.clip(losses).tolist() == expected
        assert problem.clip(losses).dtype == torch.float64
        assert problem.loss_width == 4.0


def test_gains():
    # The middle of the range is a gain of 0; prior_std is a quarter of the range.
    problem = make(loss_range=(-1.0, 3.0)).problem
    assert [problem.to_gain(loss) for loss in (0.0, 2.0, 4.0)] == [2.0, 0.0, -2.0]
    assert [problem.to_loss(gain) for gain in (2.0, 0.0, -2.0)] == [-1.0, 1.0, 3.0]


class TestCandidates:
    def test_sobol(self):
        box = torch.tensor([[1e-3, 0.0], [1.0, 2.0]], **DOUBLE)
        opt = make(bounds=box, transform=["log", "linear"], num_candidates=64)
        points = opt.search_candidates
        assert points.shape == opt.candidates.shape == (64, 2)
        assert ((opt.candidates >= box[0]) & (opt.candidates <= box[1])).all()
        low, high = opt.search_box.box
        unit = (points - low) / (high - low)
        # The centre and 63 points of a Sobol sequence, which fills both halves equally.
        assert torch.allclose(unit[0], torch.full_like(unit[0], 0.5))
        halves = (unit[1:] < 0.5).sum(dim=0)
        assert all(count in (31, 32) for count in halves.tolist())
        again = make(bounds=box, transform=["log", "linear"], num_candidates=64)
        assert torch.equal(again.candidates, opt.candidates)

    def test_start_in_a_box(self):
        box = torch.tensor([[1e-3, 0.0], [1.0, 2.0]], **DOUBLE)
        common = {"bounds": box, "transform": ["log", "linear"], "num_candidates": 16}
        centre = make(**common)
        expected = torch.tensor([10**-1.5, 1.0], **DOUBLE)
        assert torch.allclose(centre.candidates[0], expected)
        start = torch.tensor([0.3, 1.7], **DOUBLE)
        given = make(**common, initial_x=start)
        assert torch.equal(given.candidates[0], start)
        searched = given.search_box.to_search(start)
        assert torch.equal(given.search_candidates[0], searched)
        assert torch.equal(given.candidates[1:], centre.candidates[1:])
        assert given.settings()["initial_x"] == start.tolist()

    def test_start_in_a_list(self):
        points = candidates()
        assert make(candidates=points).problem.start is None
        assert make(candidates=points, initial_x=points[7]).problem.start == 7

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"initial_x": torch.zeros(3, **DOUBLE)}, "initial_x"),
            ({"initial_x": torch.zeros(2, **DOUBLE)}, "one of the candidates, got"),
            ({"initial_x": [0.0, 0.0]}, "initial_x"),
            (
                {"bounds": unit_box(2), "initial_x": torch.full((2,), 1.5, **DOUBLE)},
                "initial_x",
            ),
        ],
    )
    def test_bad_start(self, kwargs, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(**kwargs)

    def test_published_releases_have_no_start(self):
        # Their candidates are Sobol points alone.
        with pytest.raises(InvalidArgumentError, match="needs release='stable'"):
            make_published(candidates=candidates(), initial_x=candidates()[0])
        points = make_published(candidates=None, bounds=unit_box(2), num_candidates=8)
        centre = (points.candidates == 0.5).all(dim=-1)
        assert not centre.any()

    def test_graphs_are_cut(self):
        points = candidates().requires_grad_()
        assert not make(candidates=points).candidates.requires_grad

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            (torch.full((3, 2), torch.nan, **DOUBLE), "candidates must be finite"),
            (torch.zeros(3, 2, dtype=torch.int64, device=DEVICE), "float32 or torch.f"),
            ([[0.0], [1.0]], "candidates must be a"),
            (torch.zeros(1, 2, **DOUBLE), "at least two rows, got 1"),
        ],
    )
    def test_bad(self, points, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(candidates=points)

    def test_too_few_points_of_a_box(self):
        with pytest.raises(InvalidArgumentError, match="num_candidates must"):
            make(bounds=unit_box(2), num_candidates=1)


class TestKernels:
    def test_kernels(self):
        X = candidates(5)
        with DEVICE:
            scaled = ScaleKernel(MaternKernel(nu=2.5)).double()
            scaled.outputscale = 4.0
        with pytest.raises(InvalidArgumentError, match="variance 1 at every candidate"):
            make(kernel=scaled)
        # A design may not be built from private targets.
        model = GradientGP(X, X[:, :1])
        with pytest.raises(InvalidArgumentError, match="targets may be private"):
            make(kernel=model)

    def test_a_copy_with_fixed_parameters(self):
        with DEVICE:
            kernel = RBFKernel().float()
        opt = make(kernel=kernel)
        assert kernel.raw_lengthscale.requires_grad
        assert not opt.kernel.raw_lengthscale.requires_grad
        assert opt.kernel.lengthscale.dtype == torch.float64
        with DEVICE:
            kernel.lengthscale = 9.0
        assert float(opt.kernel.lengthscale) != 9.0
        assert opt.problem.prior_variance == pytest.approx(1.0)

    def test_the_default(self):
        kernel = make().kernel
        assert isinstance(kernel, MaternKernel)
        assert (kernel.nu, float(kernel.lengthscale)) == (2.5, pytest.approx(0.5))
