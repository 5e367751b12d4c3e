r"""Proposals: where to run next, given the private scores of earlier runs.

A selection may follow its own runs, if every proposal stays near the uniform
distribution: the probability of each of m candidates between c/m and C/m, whatever the
history. That costs a term in log(C/c) [Wang2023dphypo]_; ``docs/theory/selection.md``
has the proof. What decides within these limits is free: it may use all scores, fit
hyperparameters or standardize, because it is never released.

So a rule here returns any weights, and :func:`bounded_density` keeps them within the
limits. The histories are private: they exist during a selection only, and no error or
warning may come from them.

References:
    .. [Wang2023dphypo] H. Wang, S. Gao, H. Zhang, W. J. Su and M. Shen. DP-HyPO: An
        Adaptive Private Hyperparameter Optimization Framework. NeurIPS 2023.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel, MaternKernel
from torch import Tensor

from botorch_dp._validation import check_count, check_positive, describe
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.candidate_posterior import CandidatePosterior

# The history of a selection: indices of candidates and the scores of their runs.
History = Sequence[tuple[int, float]]
# Densities stay away from their limits by this share of the distance to one, which
# leaves room for the rounding of probabilities.
_ROOM = 1e-6
# Limits closer to one than this would leave no room.
_CLOSEST = 1e-3
# The error of the mean of a density that these limits allow for.
_ROUNDING = 1e-10
# The largest difference of log-weights that counts.
_WIDEST = 1e4
# The scores of a first public trial of the rule.
_TRIALS: tuple[tuple[float, ...], ...] = ((), (0.3,), (0.3, 0.3), (0.1, math.inf, 0.5))


class Proposals(ABC):
    """A rule that prefers some candidates, given the runs so far.

    Subclasses implement :meth:`log_weights` and keep nothing of what they see there.

    Args:
        ratios: The limits (c, C): every candidate is proposed with at least c and at
            most C times its probability under the uniform distribution.
        num_points: The number of Sobol points that stand for a box.
    """

    def __init__(
        self, ratios: tuple[float, float] = (0.9, 1.1), *, num_points: int = 256
    ) -> None:
        self.ratios = _check_ratios(ratios)
        self.num_points = check_count("num_points", num_points, minimum=2)
        self._num_candidates = 0

    def start(self, num_candidates: int, features: Tensor | None) -> None:
        """Learn the public candidates, and try the rule on made-up scores.

        Args:
            num_candidates: The number m of candidates.
            features: An ``m x d`` tensor in [0, 1], or None for a list of anything.

        Raises:
            InvalidArgumentError: If the rule returns something other than m weights.
        """
        self._num_candidates = num_candidates
        self._take_features(features)
        for scores in _TRIALS:
            made_up = [(i % num_candidates, s) for i, s in enumerate(scores)]
            weights = self.log_weights(made_up)
            if not _is_usable(weights, num_candidates):
                raise InvalidArgumentError(
                    f"log_weights must return a tensor of {num_candidates} numbers, "
                    f"none of them nan, got {describe(weights)}."
                )

    def _take_features(self, features: Tensor | None) -> None:
        """Keep what the rule needs of the candidates' features."""
        del features

    @abstractmethod
    def log_weights(self, private_history: History) -> Tensor:
        """Return the logarithm of how much each candidate is preferred.

        Args:
            private_history: The index and the score of each run so far. Scores may be
                infinite, but are not nan.

        Returns:
            A tensor of m finite numbers. A constant may be added to all of them.
        """

    def density(self, private_history: History) -> Tensor:
        """Return each candidate's probability times m, within the limits.

        Args:
            private_history: The index and the score of each run so far.
        """
        return proposal_density(
            self, private_history, size=self._num_candidates, ratios=self.ratios
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(ratios={self.ratios})"


class GPProposals(Proposals):
    r"""Prefers candidates with a large upper confidence bound of a Gaussian process.

    The process has fixed hyperparameters. Scores are standardized by the history. The
    weight of a candidate is :math:`\exp((\mu + \beta \sigma) / \tau)`.

    Wide limits are expensive. For the best of 16 runs on average (geometric, at least
    2) of a training run with epsilon 2.4 at delta 1e-5, epsilon is 3.8 without
    proposals, 4.3 with limits (0.9, 1.1), and 7.8 with (0.5, 2). 64 uniform runs cost
    4.5, and in simulations they found better candidates than 16 runs with any of these
    limits. So try more runs first; proposals are for runs that take very long.

    Args:
        ratios: The limits (c, C) of a proposal, relative to the uniform distribution.
        num_points: The number of Sobol points that stand for a box.
        kernel: The covariance function, its hyperparameters fixed; by default a
            Matern-5/2 kernel with lengthscale 0.3 sqrt(d) on [0, 1]^d.
        noise_variance: The variance of the noise of a score, relative to that of the
            scores.
        beta: The weight of the standard deviation.
        temperature: Small values use the limits to the full: the best candidates get
            C, the others c.
        num_uniform: The first runs, which are uniform.

    Example:
        >>> proposals = GPProposals(ratios=(0.5, 3.0))
        >>> candidates = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
        >>> proposals.start(5, candidates)
        >>> density = proposals.density([(0, 0.1), (4, 0.8), (2, 0.3)])
        >>> int(density.argmax()), bool((density >= 0.5).all() and density.max() <= 3.0)
        (4, True)
    """

    def __init__(
        self,
        ratios: tuple[float, float],
        *,
        num_points: int = 256,
        kernel: Kernel | None = None,
        noise_variance: float = 0.1,
        beta: float = 1.0,
        temperature: float = 0.1,
        num_uniform: int = 2,
    ) -> None:
        super().__init__(ratios, num_points=num_points)
        self._kernel = kernel
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.beta = check_positive("beta", beta)
        self.temperature = check_positive("temperature", temperature)
        self.num_uniform = check_count("num_uniform", num_uniform, minimum=0)

    def _take_features(self, features: Tensor | None) -> None:
        if features is None:
            raise InvalidArgumentError(
                "candidates must be an m x d tensor, or bounds= must be given, for "
                "GPProposals: a list of anything has no distances."
            )
        self._features = features.double()
        if self._kernel is None:
            with torch.device(self._features.device):
                kernel = MaternKernel(nu=2.5).to(self._features)
                kernel.lengthscale = 0.3 * math.sqrt(self._features.shape[-1])
            self._kernel = kernel.requires_grad_(False)

    @torch.no_grad()
    def log_weights(self, private_history: History) -> Tensor:
        """Return the upper confidence bounds over the temperature."""
        if len(private_history) < max(1, self.num_uniform):
            return self._features.new_zeros(len(self._features))
        assert self._kernel is not None
        posterior = CandidatePosterior(
            self._kernel,
            self._features,
            noise_variance=self.noise_variance,
            max_observations=len(private_history),
        )
        scores = _standardized([score for _, score in private_history])
        for (index, _), score in zip(private_history, scores, strict=True):
            posterior.observe(index, score)
        bound = posterior.mean + self.beta * posterior.variance.sqrt()
        return bound / self.temperature

    def __repr__(self) -> str:
        return (
            f"GPProposals(ratios={self.ratios}, noise_variance={self.noise_variance}, "
            f"beta={self.beta}, temperature={self.temperature}, "
            f"num_uniform={self.num_uniform})"
        )


def bounded_density(log_weights: Tensor, ratios: tuple[float, float]) -> Tensor:
    r"""Return the density nearest to given weights within limits, with mean one.

    That is :math:`r_i = \min(C, \max(c, \lambda w_i))` with the :math:`\lambda` for
    which the mean is one: the projection in Kullback-Leibler divergence. The limits
    are narrowed by a millionth of their distance to one, for rounding.

    Args:
        log_weights: The logarithms of m weights.
        ratios: The limits (c, C), with c <= 1 <= C.

    Example:
        >>> weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        >>> bounded_density(weights.log(), (0.1, 10.0))
        tensor([0.5000, 1.0000, 1.5000], dtype=torch.float64)
        >>> bounded_density(weights.log(), (0.9, 1.2)).round(decimals=4)
        tensor([0.9000, 0.9000, 1.2000], dtype=torch.float64)
    """
    low, high = (ratio + _ROOM * (1 - ratio) for ratio in ratios)
    logs = log_weights.detach().double().cpu()
    # Smaller weights count as equal: with larger differences, sums would round away.
    logs = (logs - logs.max()).clamp(min=-_WIDEST)
    size = len(logs)
    if low >= high:
        return torch.ones_like(logs)
    # As lambda grows, candidates leave c and later reach C. Between two such events the
    # mean is linear in lambda.
    events = torch.cat([math.log(low) - logs, math.log(high) - logs]).sort().values
    first, last = 0, len(events) - 1
    while last - first > 1:
        middle = (first + last) // 2
        total = (events[middle] + logs).exp().clamp(low, high).sum()
        first, last = (middle, last) if total <= size else (first, middle)
    between = (events[first] + events[last]) / 2 + logs
    at_low, at_high = between <= math.log(low), between >= math.log(high)
    free = ~(at_low | at_high)
    density = torch.where(at_high, torch.full_like(logs, high), low)
    rest = size - float(density[~free].sum())
    if free.any() and rest > 0:
        share = (logs[free] - logs[free].logsumexp(dim=0)).exp()
        density[free] = (rest * share).clamp(low, high)
    # Its mean must be one, since probabilities are shares of the sum.
    is_one = abs(float(density.mean()) - 1) <= _ROUNDING
    return density if is_one else torch.ones_like(density)


def proposal_density(
    proposals: Proposals,
    private_history: History,
    *,
    size: int,
    ratios: tuple[float, float],
) -> Tensor:
    """Return each candidate's probability times m, within the limits.

    A rule that fails at a history leads to the uniform distribution: an error would
    tell of the history.

    Args:
        proposals: The rule.
        private_history: The index and the score of each run so far.
        size: The number m of candidates.
        ratios: The limits (c, C) that were paid for.
    """
    uniform = torch.ones(size, dtype=torch.float64, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            weights = proposals.log_weights(private_history)
        except Exception:
            return uniform
    if not _is_usable(weights, size):
        return uniform
    return bounded_density(weights, ratios)


def draw_index(proposals: Proposals, private_history: History, uniform: float) -> int:
    """Return the index of a candidate, as a rule proposes it.

    Args:
        proposals: The rule, which was started.
        private_history: The index and the score of each run so far.
        uniform: A uniform random number.
    """
    return draw_from(proposals.density(private_history), uniform)


def draw_from(density: Tensor, uniform: float) -> int:
    """Return the index of a candidate, drawn from a density.

    Args:
        density: A nonnegative number for each candidate.
        uniform: A uniform random number.
    """
    total = density.cumsum(dim=0)
    index = int(torch.searchsorted(total, uniform * total[-1], right=True))
    return min(index, len(total) - 1)


def _standardized(scores: list[float]) -> list[float]:
    """Return scores with mean 0 and variance 1; infinite ones become the extremes."""
    finite = [score for score in scores if math.isfinite(score)] or [0.0]
    low, high = min(finite), max(finite)
    values = torch.tensor(
        [min(max(score, low), high) for score in scores],
        dtype=torch.float64,
        device="cpu",
    )
    values = values - low
    width = float(values.max())
    if not 0 < width < math.inf:
        return [0.0] * len(scores)
    values = values / width
    return ((values - values.mean()) / values.std(correction=0)).tolist()


def _is_usable(weights: object, size: int) -> bool:
    return (
        isinstance(weights, Tensor)
        and weights.shape == (size,)
        and weights.is_floating_point()
        and bool(weights.isfinite().all())
    )


def _check_ratios(ratios: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(ratio) for ratio in ratios)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (0 < low <= 1 - _CLOSEST and 1 + _CLOSEST <= high < math.inf):
        raise InvalidArgumentError(
            f"ratios must be (c, C) with 0 < c <= {1 - _CLOSEST} and C >= "
            f"{1 + _CLOSEST}, got {ratios!r}."
        )
    return low, high
