r"""The upper confidence bound of private Bayesian optimization, and its schedule.

Algorithm 1 of [Kusner2015dpbo]_ looks next at

.. math::
    \lambda_t = \arg\max_{\lambda \in \Lambda}
    \mu_{t-1}(\lambda) + \sqrt{\beta_t} \, \sigma_{t-1}(\lambda)

with a weight :math:`\beta_t` that keeps the function inside its confidence bounds at
all candidates and at all times, with high probability [Srinivas2010gpucb]_.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015. Algorithm 1.
    .. [Kusner2015workshop] The same authors and title, workshop version. Its equation 2
        has the standard deviation under the root with the weight: a misprint.
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

#: Which constants: the ones whose proof adds up, or those that were printed.
CONSTANTS = ("repaired", "icml2015", "workshop")


def ucb_beta(
    *, step: int, num_candidates: int, delta: float, constants: str = "repaired"
) -> float:
    r"""Return the weight of the variance at step t, line 4 of Algorithm 1.

    .. math::
        \beta_t = 2 \log \frac{|\Lambda| \, t^2 \pi^2}{2 \delta}

    **Repaired.** Given what was observed before step t, each :math:`f(\lambda)` is
    normal, so that some candidate's is outside
    :math:`\mu_{t-1} \pm \sqrt{\beta_t} \sigma_{t-1}` with probability
    :math:`|\Lambda| e^{-\beta_t / 2} = 2 \delta / (\pi^2 t^2)` at most. Over all t this
    adds up to :math:`\delta / 3`, the share that the theorems of [Kusner2015dpbo]_ have
    for it. Both papers print a 3 for the 2, which adds up to :math:`\delta / 2`; with
    two data sets and the change between them that is :math:`4 \delta / 3` in all.

    Args:
        step: The step t, the first is 1.
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

    **It is named after the paper and releases nothing by itself.** Its values, and the
    point that maximizes it, depend on the model's targets. If these are private, so is
    the point: Algorithm 1 runs on private values inside, and only its end result
    leaves, through a mechanism. The point may be published only if the targets are
    public or releases themselves.

    Otherwise it is BoTorch's ``UpperConfidenceBound`` with :func:`ucb_beta` for
    ``beta``; make a new one for every step. A continuous domain has no number of
    candidates: pass that of the finite set among which the release will choose.

    Args:
        model: A single-outcome model, fixed or fitted on public data.
        step: The step t, the first is 1.
        num_candidates: The number of candidates.
        delta: The probability that the bounds of the release may fail.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.
        posterior_transform: Makes one outcome of several.
        maximize: False if the model predicts losses: then minus the mean is used.
        X_pending: None. Pending points are not supported.

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
        # In double precision, and not on the default device: an evaluation moves it to
        # the dtype and device of its points.
        self.beta = torch.tensor(beta, dtype=torch.float64, device="cpu")
        self.step, self.num_candidates = step, num_candidates
        if X_pending is not None:
            self.set_X_pending(X_pending)  # raises, as for every analytic function
