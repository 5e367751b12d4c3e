"""Where to evaluate next, from what was released: all of it is post-processing."""

import hashlib
import math

import torch
from torch import Tensor

from botorch_dp.models.candidate_posterior import CandidatePosterior

# A posterior sample is drawn at this many candidates, or at twice those to evaluate.
_SAMPLED = 1000
_HALF_LOG_2PI = math.log(2 * math.pi) / 2
# Beyond this many standard deviations the expected improvement is its asymptote.
_FAR = 1e3


def log_expected_improvement(mean: Tensor, std: Tensor, best: float) -> Tensor:
    """Return log E max(0, f - best) for f ~ N(mean, std^2), without underflow.

    Args:
        mean: Posterior means.
        std: Posterior standard deviations.
        best: The value to improve on.

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> log_expected_improvement(zero, one, 0.0).exp()  # 1 / sqrt(2 pi)
        tensor([0.3989])
    """
    std = std.clamp(min=torch.finfo(std.dtype).eps)
    u = (mean - best) / std
    # phi(u) + u Phi(u), and below zero phi(u) (1 + u Phi(u) / phi(u)).
    positive = u.clamp(min=0.0)
    density = (-(positive**2) / 2 - _HALF_LOG_2PI).exp()
    near = (density + positive * torch.special.ndtr(positive)).log()
    x = -u.clamp(min=-_FAR, max=0.0)
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(x / math.sqrt(2))
    rest = torch.where(u > -_FAR, 1 - x * mills, u**-2)
    far = -(u**2) / 2 - _HALF_LOG_2PI + rest.clamp(min=1e-300).log()
    return std.log() + torch.where(u > 0, near, far)


def point_of_improvement(
    posterior: CandidatePosterior, observed: list[int], evaluated: list[int]
) -> int:
    """Return the candidate with the largest expected improvement.

    It is compared with the best posterior mean of an observed candidate, because the
    observations are noisy. No candidate is evaluated twice.

    Args:
        posterior: The posterior of the gains, given what was released.
        observed: The indices of the candidates with a released value.
        evaluated: The indices of all candidates that were evaluated.
    """
    best = float(posterior.mean[observed].max())
    improvement = log_expected_improvement(
        posterior.mean, posterior.variance.sqrt(), best
    )
    improvement[evaluated] = -math.inf
    return int(improvement.argmax())


def point_of_upper_bound(
    posterior: CandidatePosterior, beta: float, evaluated: list[int]
) -> int:
    """Return the candidate with the largest upper confidence bound.

    Args:
        posterior: The posterior of the gains, given what was released.
        beta: The weight of the variance.
        evaluated: The indices of all candidates that were evaluated.
    """
    bound = posterior.mean + (beta * posterior.variance).sqrt()
    bound[evaluated] = -math.inf
    return int(bound.argmax())


class ThompsonPoints:
    """Candidates that are the best of a posterior sample.

    Samples are joint over the candidates with the largest upper confidence bounds, and
    seeded by public numbers, so that a run that resumes continues with the same points.

    Args:
        posterior: The posterior of the gains, given what was released.
        num_evaluations: The number of points that are evaluated in all.
        beta: The weight of the variance in the upper confidence bound.
    """

    def __init__(
        self, posterior: CandidatePosterior, num_evaluations: int, beta: float
    ) -> None:
        count = min(len(posterior.mean), max(_SAMPLED, 2 * num_evaluations))
        bound = posterior.mean + (beta * posterior.variance).sqrt()
        self._among = bound.topk(count).indices
        self._mean = posterior.mean[self._among]
        self._root = posterior.covariance_root(self._among)

    def next(self, values: list[float | None], evaluated: list[int]) -> int:
        """Return the best candidate of the next sample that was not evaluated.

        Args:
            values: What was released so far, which seeds the sample.
            evaluated: The indices of all candidates that were evaluated.
        """
        text = repr((values, evaluated)).encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
        generator = torch.Generator("cpu").manual_seed(seed)
        normal = torch.randn(
            len(self._mean), generator=generator, dtype=torch.float64, device="cpu"
        )
        sample = self._mean + self._root @ normal.to(self._root)
        taken = torch.tensor(evaluated, device=self._among.device)
        sample[torch.isin(self._among, taken)] = -math.inf
        return int(self._among[sample.argmax()])
