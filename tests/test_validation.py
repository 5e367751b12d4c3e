"""Checks of arguments, and bounds on clip norms so that no sum overflows."""

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
from botorch_dp._validation import (
    LARGEST_CLIP_NORM,
    SMALLEST_CLIP_NORM,
    check_box,
    check_callable,
    check_clip_norm,
    check_inside,
    check_instance,
    check_like,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus import JointBudget
from botorch_dp.optimizers.fts.server import DPFTSServer
from botorch_dp.optimizers.fts.weights import ExplorationWeights
from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
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
        GDP(1.0), tuning="composition", num_runs=1, sample_rate=1.0, steps_per_run=1
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
            made._gradients = lambda losses, points: iter([rows])
            made._learn(None, made.ask())
            return seen[0] * len(rows)

        assert self.moved(sum_of) == pytest.approx(1.0)

    @pytest.mark.filterwarnings("ignore:Full backward hook")
    def test_joint_budget(self):
        def sum_of(rows):
            budget = JointBudget(
                GDP(1.0),
                tuning="composition",
                num_runs=1,
                sample_rate=1.0,
                steps_per_run=1,
            )
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
            return optimizer._sums[module.weight].value()

        # Norms of 1e130, whose squares are doubles.
        assert self.moved(sum_of) == pytest.approx(1.0, rel=2e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_clipped_rows_in_their_own_precision(self, dtype):
        rows = torch.full((10**6, 1), 3e38, dtype=dtype, device="cpu")
        largest = 3.4e30 if dtype == torch.float32 else LARGEST_CLIP_NORM
        assert clip_rows(rows, min(largest, 1e38)).sum(dim=0).isfinite().all()
        with pytest.raises(InvalidArgumentError, match="bound must lie between"):
            clip_rows(rows, 1.1 * largest)


class TestPublicTensors:
    @pytest.mark.parametrize(
        ("size", "shape"),
        [
            ((4, 2), ("n", 2)),
            ((4, 2), None),
            ((3, 4, 2), ("...", 2)),
            ((2,), ("...", 2)),
            ((), ()),
        ],
    )
    def test_a_shape_that_fits(self, tkwargs, size, shape):
        X = torch.zeros(size, **tkwargs)
        assert check_tensor("X", X, shape) is X

    @pytest.mark.parametrize(
        ("size", "shape"),
        [
            ((4, 3), ("n", 2)),
            ((0, 2), ("n", 2)),
            ((2,), ("n", 2)),
            ((1, 4, 2), ("n", 2)),
            ((), ("...", 2)),
            ((2, 4), ("...", 2)),
        ],
    )
    def test_a_shape_that_does_not(self, tkwargs, size, shape):
        with pytest.raises(
            InvalidArgumentError, match=r"^X must be an? .* tensor of torch"
        ):
            check_tensor("X", torch.zeros(size, **tkwargs), shape)

    def test_empty_tensors_only_on_request(self, double):
        value = torch.zeros(0, 2, **double)
        assert check_tensor("X", value, ("n", 2), allow_empty=True) is value
        with pytest.raises(InvalidArgumentError, match="X must be an n x 2 tensor"):
            check_tensor("X", value, ("n", 2))

    def test_the_error_names_what_was_expected_and_given(self):
        X = torch.zeros(4, 3, dtype=torch.float32, device="cpu")
        with pytest.raises(InvalidArgumentError) as error:
            check_tensor("X", X, ("n", 2), meaning="one row for each point")
        assert str(error.value) == (
            "X must be an n x 2 tensor of torch.float32 or torch.float64 (one row for "
            "each point), got torch.float32 of shape (4, 3)."
        )

    @pytest.mark.parametrize("value", [[1.0], None, 3, "X"])
    def test_no_tensor(self, value):
        with pytest.raises(InvalidArgumentError, match="got"):
            check_tensor("X", value)

    def test_dtypes(self):
        whole = torch.zeros(2, dtype=torch.int64, device="cpu")
        assert check_tensor("index", whole, dtype=torch.int64) is whole
        with pytest.raises(InvalidArgumentError, match=r"got torch\.int64 of shape"):
            check_tensor("X", whole)

    @pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
    def test_finite(self, double, odd):
        X = torch.tensor([1.0, odd], **double)
        assert check_tensor("X", X) is X
        with pytest.raises(InvalidArgumentError, match="X must be finite"):
            check_tensor("X", X, finite=True)

    def test_a_long_value_is_cut(self, double):
        X = torch.full((1000,), math.nan, **double)
        with pytest.raises(InvalidArgumentError) as error:
            check_tensor("X", X, finite=True)
        assert len(str(error.value)) < 400


class TestTensorsLikeAnother:
    @pytest.mark.parametrize(
        ("size", "shape"),
        [((2, 3), (2, 3)), ((0, 3), ("n", 3)), ((5, 0, 3), ("...", "q", 3)), ((), ())],
    )
    def test_a_shape_that_fits(self, tkwargs, size, shape):
        value = torch.zeros(size, **tkwargs)
        assert check_like("X", value, shape, torch.ones(1, **tkwargs)) is value

    @pytest.mark.parametrize(
        ("value", "got"),
        [
            (torch.zeros(3, 3, **DOUBLE), r"torch.float64 of shape \(3, 3\) on cpu"),
            (torch.zeros(3, **DOUBLE), r"torch.float64 of shape \(3,\) on cpu"),
            (torch.zeros(2, 3, device="cpu").float(), "torch.float32 of shape"),
            (torch.zeros(2, 3, dtype=torch.float64, device="meta"), ".* on meta"),
            ([[0.7]], "a list"),
        ],
    )
    def test_what_differs(self, value, got):
        like = torch.zeros(1, **DOUBLE)
        match = f"X must be a torch.float64 tensor of shape 2 x n on cpu, got {got}"
        with pytest.raises(InvalidArgumentError, match=match) as caught:
            check_like("X", value, (2, "n"), like)
        assert "0.7" not in str(caught.value)  # it may be private

    def test_another_dtype(self):
        index = torch.zeros((), dtype=torch.int64, device="cpu")
        assert (
            check_like("i", index, (), torch.ones(1, **DOUBLE), dtype=torch.int64) == 0
        )
        with pytest.raises(
            InvalidArgumentError, match=r"torch.bool tensor of shape \("
        ):
            check_like("i", index, (), torch.ones(1, **DOUBLE), dtype=torch.bool)


class TestBoxes:
    def test_a_box_is_copied(self, double):
        bounds = torch.tensor([[0.0], [1.0]], **double)
        checked = check_box("bounds", bounds, dim=1)
        bounds[0] = 5.0
        assert checked.tolist() == [[0.0], [1.0]]

    @pytest.mark.parametrize(
        ("bounds", "match"),
        [
            ([[0.0, 1.0]], "lower bounds first"),
            ([[0.0, 0.0], [1.0, 0.0]], "every lower bound below"),
            ([[0.0, 0.0], [1.0, math.inf]], "must be finite"),
            ([[0.0, math.nan], [1.0, 1.0]], "must be finite"),
            ([[0.0], [1.0]], "must be a 2 x 2 tensor"),
        ],
    )
    def test_no_box(self, double, bounds, match):
        with pytest.raises(InvalidArgumentError, match=match):
            check_box("bounds", torch.tensor(bounds, **double), dim=2)

    def test_infinite_bounds_only_on_request(self, double):
        bounds = torch.tensor([[0.0, -torch.inf], [torch.inf, 1.0]], **double)
        assert torch.equal(check_box("bounds", bounds, finite=False), bounds)
        with pytest.raises(InvalidArgumentError, match="bounds must be finite with"):
            check_box("bounds", bounds)
        with pytest.raises(InvalidArgumentError, match="bounds must have every lower"):
            check_box("bounds", bounds.flip(0), finite=False)

    def test_inside(self, double):
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **double)
        edge = torch.tensor([[0.0, 1.0]], **double)
        assert check_inside("X", edge, bounds).equal(edge)
        for X in (edge + 1e-9, edge * math.nan):
            with pytest.raises(InvalidArgumentError, match="X must lie within bounds"):
                check_inside("X", X, bounds)


class TestInstances:
    def test_right_ones(self):
        assert check_instance("step", 3, int) == 3
        assert check_instance("step", None, (int, type(None))) is None
        assert check_callable("losses", print) is print

    def test_wrong_ones(self):
        with pytest.raises(
            InvalidArgumentError, match=r"^step must be a int or None, got 'x'\.$"
        ):
            check_instance("step", "x", (int, type(None)))
        with pytest.raises(InvalidArgumentError, match=r"^step must be a schedule, "):
            check_instance("step", "x", int, expected="a schedule")
        with pytest.raises(InvalidArgumentError, match="a function, got a str"):
            check_callable("losses", "x")
