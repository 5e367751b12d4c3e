"""Clip norms: bounded so that no sum of clipped values overflows."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp import (
    DPGIBO,
    GDP,
    LDPBO,
    LDPBOClient,
    Ledger,
    StepSchedule,
    SubsampledGaussianMechanism,
)
from botorch_dp._checks import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM, check_clip_norm
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus import JointBudget
from botorch_dp.optimizers.fts_server import DPFTSServer
from botorch_dp.optimizers.fts_weights import ExplorationWeights
from botorch_dp.optimizers.local_release import LocalRelease
from botorch_dp.privacy import clip_rows, private_clipping_diagnostics

DOUBLE = {"dtype": torch.float64, "device": torch.device("cpu")}


def gibo(clip_norm):
    bounds = torch.tensor([[0.0], [1.0]], **DOUBLE)
    return DPGIBO(bounds, 100, GDP(1.0), num_steps=2, clip_norm=clip_norm)


def subsampled(clip_norm):
    return SubsampledGaussianMechanism(
        noise_multiplier=1.0, clip_norm=clip_norm, sampling_rate=1.0
    )


def joint_budget(clip_norm):
    budget = JointBudget(
        GDP(1.0), num_runs=1, sample_rate=1.0, steps_per_run=1, records="disjoint"
    )
    module = nn.Linear(2, 1, **DOUBLE)
    return budget.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=4),
        max_grad_norm=clip_norm,
    )


def fts_server(clip_norm):
    weights = ExplorationWeights(torch.zeros(3, dtype=torch.long, device="cpu"), 1)
    return DPFTSServer(
        weights,
        5,
        clip_norm=clip_norm,
        noise_multiplier=1.0,
        sampling_rate=0.5,
        num_rounds=2,
    )


ACCEPTORS = {
    "clip_rows": lambda norm: clip_rows(torch.ones(2, 2, **DOUBLE), norm),
    "diagnostics": lambda norm: private_clipping_diagnostics(
        torch.ones(2, 2, **DOUBLE), norm
    ),
    "subsampled": subsampled,
    "DPGIBO": gibo,
    "LocalRelease": lambda norm: LocalRelease(GDP(1.0), norm),
    "LDPBOClient": lambda norm: LDPBOClient(lambda X: X[:, 0], GDP(1.0), norm),
    "LDPBO": lambda norm: LDPBO(torch.zeros(2, **DOUBLE), GDP(1.0), norm),
    "StepSchedule": lambda norm: StepSchedule.for_noise(
        radius=1.0, clip_norm=norm, noise_std=1.0, dim=2
    ),
    "DPFTSServer": fts_server,
    "JointBudget": joint_budget,
}


@pytest.mark.default_device
@pytest.mark.parametrize("name", ACCEPTORS)
class TestWhereClipNormsAreAccepted:
    @pytest.mark.parametrize("norm", [1e101, 1e305, 1e308, 1e-293, 5e-324, math.inf])
    def test_beyond_what_can_be_summed(self, name, norm):
        with pytest.raises(InvalidArgumentError, match="must"):
            ACCEPTORS[name](norm)

    @pytest.mark.parametrize("norm", [1e-99, 1.0, LARGEST_CLIP_NORM])
    def test_everything_between(self, name, norm):
        ACCEPTORS[name](norm)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (0.0, "clip_norm must be a finite number above 0"),
        ("1", "clip_norm must be a number"),
        (2e100, r"clip_norm must lie between 1e-100 and 1e\+100.*got 2e\+100"),
        (1e-101, r"clip_norm must lie between 1e-100 and 1e\+100.*got 1e-101"),
    ],
)
def test_refused(value, match):
    with pytest.raises(InvalidArgumentError, match=match):
        check_clip_norm("clip_norm", value)


@pytest.mark.parametrize("value", [SMALLEST_CLIP_NORM, 1, LARGEST_CLIP_NORM])
def test_accepted(value):
    assert check_clip_norm("clip_norm", value) == value


@pytest.mark.default_device
class TestSumsAtTheLargestNorm:
    """A thousand records of 1e300 each, and the same without one of them."""

    COUNT = 1000

    def rows(self, present):
        rows = torch.zeros(self.COUNT, 1, **DOUBLE)
        rows[:present] = 1e300
        return rows

    def moved(self, sum_of):
        sums = [sum_of(self.rows(self.COUNT - gone)) for gone in (0, 1)]
        assert all(total.isfinite().all() for total in sums)
        return float((sums[0] - sums[1]).norm()) / LARGEST_CLIP_NORM

    def test_subsampled(self, monkeypatch):
        made = subsampled(LARGEST_CLIP_NORM)
        monkeypatch.setattr(made.noise_source, "add_gaussian", lambda value, std: value)
        moved = self.moved(lambda rows: made.release(rows, ledger=Ledger()))
        assert moved == pytest.approx(1.0)

    def test_gradient_descent(self):
        def sum_of(rows):
            made, seen = gibo(LARGEST_CLIP_NORM), []
            made.num_records = len(rows)
            made._release = lambda mean: seen.append(mean) or mean
            made._private_gradients = lambda losses, points: iter([rows])
            made._learn(None, made.ask())
            return seen[0] * len(rows)

        assert self.moved(sum_of) == pytest.approx(1.0)

    @pytest.mark.filterwarnings("ignore:Full backward hook")
    def test_joint_budget(self):
        def sum_of(rows):
            budget = JointBudget(GDP(1.0), num_runs=1, sample_rate=1.0, steps_per_run=1)
            module = nn.Linear(1, 1, bias=False, **DOUBLE)
            private, optimizer, loader = budget.make_private(
                module=module,
                optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
                data_loader=DataLoader(TensorDataset(rows), batch_size=len(rows)),
                max_grad_norm=LARGEST_CLIP_NORM,
                loss_reduction="sum",
            )
            private(1e-170 * next(iter(loader))[0]).sum().backward()
            optimizer.clip_and_accumulate()
            return optimizer._sums[module.weight]

        # Norms of 1e130, whose squares are doubles.
        assert self.moved(sum_of) == pytest.approx(1.0, rel=2e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_clipped_rows_in_their_own_precision(self, dtype):
        rows = torch.full((10**6, 1), 3e38, dtype=dtype, device="cpu")
        largest = 3.4e30 if dtype == torch.float32 else LARGEST_CLIP_NORM
        assert clip_rows(rows, min(largest, 1e38)).sum(dim=0).isfinite().all()
        with pytest.raises(InvalidArgumentError, match="bound must lie between"):
            clip_rows(rows, 1.1 * largest)
