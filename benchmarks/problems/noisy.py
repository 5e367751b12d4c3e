"""Noisy observations of a problem: appendix C.5 of [Sopa2025dpgibo]_.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025.
"""

from torch import Tensor

from botorch_dp._validation import check_instance, check_nonnegative
from botorch_dp.problems.base import (
    PerRecordProblem,
    RowLosses,
    normal,
    seeded_generator,
)


class NoisyObservations(PerRecordProblem):
    r"""Any problem, observed with noise on its mean loss.

    Each candidate of each call gets one number :math:`\lambda Z`, Z standard normal,
    that is added to the losses of *all* records. Their mean, from which an optimizer
    learns, is then :math:`f + \lambda Z` as in the paper, which sets
    :math:`\lambda = 0.01`. Independent noise for each record would average out.

    Every call draws new noise, and the same seed gives the same noise for the same
    sequence of calls. It is not noise for privacy. ``evaluate_true`` and ``gradients``
    have no noise.

    Args:
        problem: The problem to observe.
        noise_std: The standard deviation :math:`\lambda`.
        seed: The seed of the noise.

    Example:
        >>> from botorch_dp.problems import NormalLocation
        >>> problem = NoisyObservations(NormalLocation(), noise_std=0.01)
        >>> X = torch.zeros(2, 5, dtype=torch.float64)
        >>> error = problem.losses(X).mean(dim=0) - problem.evaluate_true(X)
        >>> bool((0 < error.abs()).all()), bool((error.abs() < 0.05).all())
        (True, True)
    """

    def __init__(
        self, problem: PerRecordProblem, noise_std: float = 0.01, *, seed: int = 0
    ) -> None:
        check_instance("problem", problem, PerRecordProblem)
        lower, upper = problem.bounds.tolist()
        super().__init__(
            num_records=problem.num_records,
            bounds=list(zip(lower, upper, strict=True)),
            transform=problem.transform,
            negate=problem.negate,
            dtype=problem.dtype,
            device=problem.device,
        )
        self.problem = problem
        self.noise_std = check_nonnegative("noise_std", noise_std)
        self.optimal_x = problem.optimal_x
        self.optimal_value = problem.optimal_value
        self._generator = seeded_generator(seed)

    def evaluate_true(self, X: Tensor) -> Tensor:
        """Return the mean loss of the problem, without the noise.

        Args:
            X: A ``b x d`` tensor of candidates within the bounds.

        Returns:
            A ``b`` tensor: private, for measuring only.
        """
        return self.problem.evaluate_true(X)

    def _loss_function(self, X: Tensor) -> RowLosses:
        noiseless = self.problem._loss_function(X)
        noise = self.noise_std * normal(len(X), generator=self._generator)
        noise = noise.to(X)  # b: one number for all records

        def losses(rows: slice) -> Tensor:
            return noiseless(rows) + noise

        return losses

    def _gradients(self, x: Tensor) -> Tensor:
        return self.problem._gradients(x)
