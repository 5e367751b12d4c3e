r"""The location of a normal distribution: section 4.1 of [Sopa2025dpgibo]_.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025.
"""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from botorch_dp._validation import check_count
from botorch_dp.problems.base import (
    PerRecordProblem,
    ProblemSettings,
    RowLosses,
    check_bounds,
    normal,
    seeded_generator,
)


class NormalLocation(PerRecordProblem):
    r"""Find the mean of a normal distribution with the identity as covariance.

    Records are :math:`x_i \sim N(m 1, I)` in d dimensions, and the loss is

    .. math:: \ell_i(\theta) = \tfrac12 \|x_i - \theta\|^2, \qquad
        \nabla \ell_i(\theta) = \theta - x_i,

    the negative log-likelihood up to a constant. The optimum is the mean of the records
    or the nearest point of the box. The paper sets n = 50, d = 5, m = 1 and starts at
    0. It does not state a box, although its polynomial kernel needs one.

    Args:
        num_records: The number of records n.
        dim: The number of dimensions d.
        mean: The mean m of every coordinate.
        bounds: A (lower, upper) pair for each dimension; [-2, 4] by default.
        seed: The seed of the records.
        **settings: ``negate``, ``dtype`` and ``device`` of :class:`PerRecordProblem`.

    Example:
        >>> problem = NormalLocation()
        >>> problem.losses(torch.zeros(3, 5, dtype=torch.float64)).shape
        torch.Size([50, 3])
        >>> bool(problem.gradients(problem.optimal_x).mean(dim=0).norm() < 1e-12)
        True
    """

    def __init__(
        self,
        num_records: int = 50,
        dim: int = 5,
        *,
        mean: float = 1.0,
        bounds: Sequence[tuple[float, float]] | None = None,
        seed: int = 0,
        **settings: Unpack[ProblemSettings],
    ) -> None:
        num_records = check_count("num_records", num_records)
        dim = check_count("dim", dim)
        super().__init__(
            num_records=num_records,
            bounds=check_bounds(bounds, dim, default=(-2.0, 4.0)),
            transform=("identity",) * dim,
            **settings,
        )
        generator = seeded_generator(seed)
        records = mean + normal(num_records, dim, generator=generator)
        self._records = records.to(self.bounds)  # n x d
        # The loss is isotropic, so the optimum in the box is the projected mean.
        self._set_optimum(self._records.mean(dim=0).clamp(*self.bounds))

    def _loss_function(self, X: Tensor) -> RowLosses:
        def losses(rows: slice) -> Tensor:
            differences = self._records[rows].unsqueeze(1) - X  # rows x b x d
            return differences.square().sum(dim=-1) / 2

        return losses

    def _gradients(self, x: Tensor) -> Tensor:
        return x - self._records
