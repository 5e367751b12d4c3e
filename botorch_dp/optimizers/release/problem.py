"""The problem of a release: candidates, prior, range of the losses, budget."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp._validation import check_count, check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.search_box import SearchBox
from botorch_dp.privacy import Guarantee

# In the unit cube, as for DP-GIBO; Matern-5/2 because losses need not be smooth.
_DEFAULT_LENGTHSCALE = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class ReleaseProblem:
    """Public facts about a run: the candidates, the model, and what may be spent.

    Attributes:
        bounds: The ``2 x d`` bounds in the user's coordinates.
        candidates: The ``N x d`` candidates in search coordinates.
        start: The index of the candidate to evaluate first, if there is one.
        is_sequence: Whether the first candidates fill the space, whatever their number.
        kernel: The covariance function of the losses in search coordinates.
        prior_variance: The largest prior variance of a candidate.
        prior_std: The standard deviation of the mean loss, in units of the loss.
        noise_variance: The variance of an observation, beside the kernel's variance.
        beta: The weight of the variance in UCB, where the paper has no schedule.
        num_records: The number n of private records.
        num_steps: The number T of steps.
        batch_size: The number of points in a step.
        loss_range: The lower and the upper end of the range of a loss.
        guarantee: The guarantee of all releases together.
        output: What is released: ``"both"``, ``"point"`` or ``"value"``.
        noise: The arguments of a mechanism that say where its randomness comes from.
    """

    bounds: Tensor
    candidates: Tensor
    start: int | None
    is_sequence: bool
    kernel: Kernel
    prior_variance: float
    prior_std: float
    noise_variance: float
    beta: float
    num_records: int
    num_steps: int
    batch_size: int
    loss_range: tuple[float, float]
    guarantee: Guarantee
    output: str
    noise: Mapping[str, Any]

    @property
    def loss_width(self) -> float:
        """The width R of the range of losses."""
        low, high = self.loss_range
        return high - low

    def clip(self, private_losses: Tensor) -> Tensor:
        """Count losses from the lower end of their range, and clip them to it.

        In double precision: far from zero, or in single precision, the sums that follow
        would be rounded by more than one record contributes.
        """
        width = self.loss_width
        above = private_losses.double() - self.loss_range[0]
        return above.nan_to_num(nan=width, posinf=width, neginf=0.0).clamp(0.0, width)

    def to_gain(self, loss: float | Tensor) -> Any:
        """Return a mean loss, above the lower end, as a gain with prior N(0, 1)."""
        return (self.loss_width / 2 - loss) / self.prior_std

    def to_loss(self, gain: float) -> float:
        """Return the mean loss of a gain, in the user's range."""
        return sum(self.loss_range) / 2 - self.prior_std * gain


def check_candidates(candidates: Tensor) -> Tensor:
    """Return finite candidates, at least two of them, without their graph."""
    check_tensor("candidates", candidates, ("N", "d"), finite=True)
    if len(candidates) < 2:
        raise InvalidArgumentError(
            f"candidates must have at least two rows, got {len(candidates)}."
        )
    constant = (candidates == candidates[0]).all(dim=0)
    if constant.any():
        raise InvalidArgumentError(
            "candidates must vary in every column, got the same value in all rows of "
            f"column {int(constant.nonzero()[0])}: leave that column out."
        )
    return candidates.detach()


def row_of(candidates: Tensor, initial_x: Tensor) -> int:
    """Return the index of the candidate that is ``initial_x``."""
    check_tensor("initial_x", initial_x, (candidates.shape[-1],), meaning="one point")
    rows = (candidates == initial_x.to(candidates)).all(dim=-1).nonzero()
    if not len(rows):
        raise InvalidArgumentError(
            f"initial_x must be one of the candidates, got {initial_x.tolist()}."
        )
    return int(rows[0])


def sobol_candidates(search_box: SearchBox, count: int) -> Tensor:
    """Return ``count`` Sobol points of the box, in search coordinates."""
    count = check_count("num_candidates", count, minimum=2)
    with torch.device("cpu"):
        points = SobolEngine(search_box.dim, scramble=True, seed=0).draw(
            count, dtype=torch.float64
        )
    low, high = search_box.box
    return low + (high - low) * points.to(search_box.bounds)


def box_candidates(
    search_box: SearchBox, count: int, initial_x: Tensor | None, *, has_start: bool
) -> tuple[Tensor, Tensor]:
    """Return a starting point, if there is to be one, and Sobol points of a box.

    Args:
        search_box: The box.
        count: The number of candidates.
        initial_x: The first candidate; by default the centre in search coordinates.
        has_start: Whether there is a starting point.

    Returns:
        The candidates, and the same in search coordinates.
    """
    U = sobol_candidates(search_box, count)
    if not has_start:
        return search_box.from_search(U), U
    start = search_box.from_search(search_box.box.mean(dim=0))
    if initial_x is not None:
        start = search_box.check_inside("initial_x", initial_x).to(U)
    X = torch.cat([start.unsqueeze(0), search_box.from_search(U[:-1])])
    return X, torch.cat([search_box.to_search(X[:1]), U[:-1]])


def fixed_kernel(kernel: Kernel | None, candidates: Tensor) -> tuple[Kernel, float]:
    """Return a copy of the kernel with fixed parameters, and its largest variance.

    Args:
        kernel: A kernel with variance 1 at every candidate; None for the default.
        candidates: An ``N x d`` tensor in search coordinates.
    """
    if kernel is None:
        with candidates.device:
            kernel = MaternKernel(nu=2.5)
            kernel.lengthscale = _DEFAULT_LENGTHSCALE
    if not isinstance(kernel, Kernel):
        is_model = hasattr(kernel, "train_targets")
        hint = ", not a model, whose targets may be private" if is_model else ""
        raise InvalidArgumentError(
            f"kernel must be a gpytorch.kernels.Kernel{hint}; got "
            f"{type(kernel).__name__}."
        )
    kernel = copy.deepcopy(kernel).to(candidates).requires_grad_(False).eval()
    variances = kernel(candidates, diag=True)
    if variances.dim() != 1 or not torch.allclose(
        variances, torch.ones_like(variances), atol=1e-5
    ):
        raise InvalidArgumentError(
            "kernel must have variance 1 at every candidate (prior_std scales it), got "
            f"values from {float(variances.min()):.6g} to {float(variances.max()):.6g}."
        )
    return kernel, float(variances.max())
