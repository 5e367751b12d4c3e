r"""Local searches that follow the posterior of the gradient: GIBO and MPD.

With the gradient's posterior :math:`N(\mu, \Sigma)` at a point, a direction v descends
with probability :math:`\Phi(-v^\top \mu / \sqrt{v^\top \Sigma v})`. The most probable
descent direction and its probability are

.. math::
    v^* = -\Sigma^{-1} \mu, \qquad \Phi\big(\sqrt{\mu^\top \Sigma^{-1} \mu}\big),

by the inequality of Cauchy and Schwarz in the inner product of :math:`\Sigma`.

References:
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021.
    .. [Nguyen2022mpd] Q. Nguyen, K. Wu, J. R. Gardner and R. Garnett. Local Bayesian
        Optimization via Maximizing Descent Probability. NeurIPS 2022. Section 3.
"""

from typing import Any

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_dp._validation import check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientGP
from botorch_dp.optimizers.baselines.local.search import LocalSearch


def most_probable_descent(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable descent direction and its probability.

    Args:
        mean: The mean of the gradient, a ``d`` tensor.
        covariance: Its ``d x d`` covariance.

    Returns:
        A unit vector, and the probability that the function falls along it.

    Example:
        >>> mean = torch.tensor([1.0, 1.0], dtype=torch.float64)
        >>> covariance = torch.diag(torch.tensor([1.0, 100.0], dtype=torch.float64))
        >>> direction, probability = most_probable_descent(mean, covariance)
        >>> direction, round(float(probability), 3)
        (tensor([-1.0000, -0.0100], dtype=torch.float64), 0.843)
    """
    root = psd_safe_cholesky(covariance)
    ascent = torch.cholesky_solve(mean.unsqueeze(-1), root).squeeze(-1)
    squared = (mean * ascent).sum().clamp(min=0.0)
    length = ascent.norm()
    direction = -ascent / length.clamp(min=torch.finfo(mean.dtype).tiny)
    return direction, torch.special.ndtr(squared.sqrt())


class MostProbableDescent(LocalSearch):
    """Local Bayesian optimization by the probability of descent [Nguyen2022mpd]_.

    A step evaluates points that are informative about the gradient. Then the centre
    moves along the most probable descent direction, without evaluations, for as long as
    its probability is large enough. Where the gradient is uncertain in all directions,
    the points that reduce its covariance most also raise the expected probability most,
    so that they are chosen in closed form.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records; 1 for a function without records.
        num_steps: The number of steps.
        threshold: The probability of descent above which the centre moves; 0.65 in the
            paper.
        step_size: The length of a move, in length scales of the model over the square
            root of d.
        max_moves: The largest number of moves a step.
        **kwargs: The arguments of :class:`LocalSearch`.

    Example:
        >>> bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
        >>> opt = MostProbableDescent(bounds, num_records=1, num_steps=4)
        >>> result = opt.run(lambda X: (X - 0.3).square().sum(dim=-1), progress=False)
        >>> bool((result.x - 0.3).norm() < 0.2)
        True
    """

    name = "mpd"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        *,
        threshold: float = 0.65,
        step_size: float = 0.1,
        max_moves: int = 50,
        **kwargs: Any,
    ) -> None:
        super().__init__(bounds, num_records, num_steps, **kwargs)
        self.threshold = check_positive("threshold", threshold)
        if not 0.5 <= self.threshold < 1:
            raise InvalidArgumentError(
                "threshold must be a probability of at least 0.5 and below 1, got "
                f"{threshold!r}: some direction always descends with probability 0.5."
            )
        self.step_size = check_positive("step_size", step_size)
        self.max_moves = check_count("max_moves", max_moves)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "threshold": self.threshold,
            "step_size": self.step_size,
            "max_moves": self.max_moves,
        }

    @torch.no_grad()
    def _move(self, model: GradientGP) -> Tensor:
        at, _ = self._best_known()
        size = self.step_size * float(length_scale(model))
        for _ in range(self.max_moves):
            posterior = model.gradient_posterior(at.unsqueeze(0))
            direction, probability = most_probable_descent(
                posterior.mean[0], posterior.covariance[0]
            )
            if probability < self.threshold:
                break
            moved = self._project(at + size * direction)
            if torch.equal(moved, at):
                break
            at = moved
        return at


class FittedGIBO(LocalSearch):
    """GIBO with fitted hyperparameters [Mueller2021local]_.

    A step evaluates points that are informative about the gradient, and moves against
    its posterior mean. :class:`GIBO` has fixed hyperparameters and a learning rate, as
    the private algorithm has.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records; 1 for a function without records.
        num_steps: The number of steps.
        step_size: The length of a move, in length scales of the model.
        **kwargs: The arguments of :class:`LocalSearch`.

    Example:
        >>> bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
        >>> opt = FittedGIBO(bounds, num_records=1, num_steps=10)
        >>> result = opt.run(lambda X: (X - 0.3).square().sum(dim=-1), progress=False)
        >>> bool((result.x - 0.3).norm() < 0.2)
        True
    """

    name = "fitted gibo"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        *,
        step_size: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(bounds, num_records, num_steps, **kwargs)
        self.step_size = check_positive("step_size", step_size)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "step_size": self.step_size}

    @torch.no_grad()
    def _move(self, model: GradientGP) -> Tensor:
        gradient = model.gradient_posterior(self._center.unsqueeze(0)).mean[0]
        size = self.step_size * length_scale(model)
        norm = gradient.norm().clamp(min=torch.finfo(gradient.dtype).tiny)
        return self._center - size * gradient / norm


def length_scale(model: GradientGP) -> Tensor:
    """Return the length scale of a model of :mod:`.surrogate`."""
    return model.covar_module.base_kernel.lengthscale.squeeze()
