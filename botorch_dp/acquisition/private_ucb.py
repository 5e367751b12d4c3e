r"""The upper confidence bound of private Bayesian optimization, and its schedule.

Algorithm 1 of [Kusner2015dpbo]_ evaluates next

.. math::
    \lambda_t = \arg\max_{\lambda \in \Lambda}
    \mu_{t-1}(\lambda) + \sqrt{\beta_t} \, \sigma_{t-1}(\lambda)

with a weight :math:`\beta_t` that keeps the function inside its confidence bounds at
all candidates and at all times, with high probability [Srinivas2010gpucb]_.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015. Algorithm 1.
    .. [Kusner2015workshop] The same authors and title, workshop version. Its equation 2
        has a misprint: the standard deviation stands under the root.
    .. [Srinivas2010gpucb] N. Srinivas, A. Krause, S. Kakade and M. Seeger. Gaussian
        Process Optimization in the Bandit Setting: No Regret and Experimental Design.
        ICML 2010. Lemma 5.1 and Theorem 1.
"""

import math

import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_probability

#: The constants whose proof is complete, and those printed in the two papers.
CONSTANTS = ("repaired", "icml2015", "workshop")


def ucb_beta(
    *, step: int, num_candidates: int, delta: float, constants: str = "repaired"
) -> float:
    r"""Return the weight of the variance at step t, line 4 of Algorithm 1.

    .. math::
        \beta_t = 2 \log \frac{|\Lambda| \, t^2 \pi^2}{2 \delta}

    **Repaired.** Given the observations before step t, each :math:`f(\lambda)` is
    normal, so that some candidate lies outside
    :math:`\mu_{t-1} \pm \sqrt{\beta_t} \sigma_{t-1}` with probability at most
    :math:`|\Lambda| e^{-\beta_t / 2} = 2 \delta / (\pi^2 t^2)`. The sum over all t is
    :math:`\delta / 3`, the share that the theorems of [Kusner2015dpbo]_ allow. Both
    papers print a 3 instead of the 2, whose sum is :math:`\delta / 2`; with two data
    sets and the change between them the total is then :math:`4 \delta / 3`.

    Args:
        step: The step t, starting at 1.
        num_candidates: The number of candidates, :math:`|\Lambda|`.
        delta: The probability that the bounds of the release may fail.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.

    Example:
        >>> round(ucb_beta(step=10, num_candidates=1000, delta=0.1), 3)
        30.824
        >>> setting = dict(num_candidates=1000, delta=0.1, constants="icml2015")
        >>> round(ucb_beta(step=10, **setting), 3)
        30.013
    """
    step = check_count("step", step)
    num_candidates = check_count("num_candidates", num_candidates)
    delta = check_probability("delta", delta)
    constants = check_choice("constants", constants, CONSTANTS)
    divisor = 2 if constants == "repaired" else 3
    return 2 * (
        math.log(num_candidates)
        + 2 * math.log(math.pi * step)
        - math.log(divisor)
        - math.log(delta)
    )


class PrivateUpperConfidenceBound(UpperConfidenceBound):
    r"""The posterior mean plus :math:`\sqrt{\beta_t}` standard deviations.

    **It is named after the paper but does not make anything private.** Its values, and
    the point that maximizes it, depend on the model's targets. If the targets are
    private, so is the point: Algorithm 1 computes on private values and releases only
    its final result, through a mechanism. Publish the point only if the targets are
    public or were released by a mechanism.

    It is BoTorch's ``UpperConfidenceBound`` with ``beta`` from :func:`ucb_beta`; create
    a new one for every step. In a continuous domain, pass the size of the finite set
    from which the release will choose.

    Args:
        model: A single-outcome model, fixed or fitted on public data.
        step: The step t, starting at 1.
        num_candidates: The number of candidates.
        delta: The probability that the bounds of the release may fail.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.
        posterior_transform: Combines several outcomes into one.
        maximize: False if the model predicts losses; the mean is then negated.
        X_pending: Must be None; pending points are not supported.

    Attributes:
        beta: The weight of the variance, as a tensor.
        step: The step t.
        num_candidates: The number of candidates.

    Raises:
        UnsupportedError: If ``X_pending`` is given, or the model has several outcomes
            and no ``posterior_transform`` is.

    Example:
        >>> from botorch.models import SingleTaskGP
        >>> from botorch.optim import optimize_acqf_discrete
        >>> X = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> model = SingleTaskGP(X, X - 0.5, outcome_transform=None)
        >>> candidates = torch.linspace(0, 1, 11, dtype=torch.float64).unsqueeze(-1)
        >>> acqf = PrivateUpperConfidenceBound(
        ...     model, step=3, num_candidates=len(candidates), delta=0.1
        ... )
        >>> point, _ = optimize_acqf_discrete(acqf, q=1, choices=candidates)
        >>> point.shape
        torch.Size([1, 1])
    """

    def __init__(
        self,
        model: Model,
        *,
        step: int,
        num_candidates: int,
        delta: float,
        constants: str = "repaired",
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
    ) -> None:
        beta = ucb_beta(
            step=step, num_candidates=num_candidates, delta=delta, constants=constants
        )
        super().__init__(
            model=model,
            beta=beta,
            posterior_transform=posterior_transform,
            maximize=maximize,
        )
        # Double precision on the CPU: an evaluation moves it to the dtype and device of
        # its points.
        self.beta = torch.tensor(beta, dtype=torch.float64, device="cpu")
        self.step, self.num_candidates = step, num_candidates
        if X_pending is not None:
            self.set_X_pending(X_pending)  # raises, as for every analytic function
