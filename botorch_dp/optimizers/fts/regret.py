r"""The terms of the regret bound of [Dai2021dpfts]_, Theorem 1, as functions.

With probability :math:`1 - \delta`, the cumulative regret of agent 1 is, up to
constants and logarithms that the theorem does not state,

.. math::
    (B + 1/p_1)\, \gamma_T \sqrt T + \sum_{t=1}^T \psi_t + B \sum_{t=1}^T \vartheta_t,

.. math::
    \psi_t = (1 - p_t) \frac{P \varphi_{\max}}{q} \Big(\sum_{n=1}^N \Delta_{n,t}
        + z S \sqrt M\Big), \quad
    \Delta_{n,t} = \varepsilon B t^2 + B + \sqrt M + d_n + \sqrt{\gamma_t}, \quad
    \vartheta_t = (1 - p_t) \sum_{i=1}^P \sum_{n \in \mathcal C_t} \varphi_n^{(i)}.

So its terms show how the bound depends on the settings, and its value is no regret.

**What is wrong with it.** The paper says that all terms are sub-linear in T for
:math:`1 - p_t = O(1/t^2)`. But :math:`(1 - p_t)\, \varepsilon B t^2` is then bounded
by a constant only, and its sum grows as T, for a fixed number M of features and
therefore a fixed :math:`\varepsilon`. It is sub-linear if :math:`1 - p_t =
O(t^{-2-c})` with c above 0.
And p must be above 0 from the first round on: :math:`1 - p_t = 1/\sqrt t` and
:math:`1/t`, which the experiments of the paper use, make the bound infinite.

Which vectors are clipped is private. Pass a bound on their number.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from botorch_dp._validation import (
    check_count,
    check_nonnegative,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError


@dataclass(frozen=True)
class RegretTerms:
    """The three terms of the bound, up to constants and logarithms.

    Attributes:
        own: What the agent would have with its own samples only.
        others: What the vectors of the other agents and the noise add.
        clipping: What clipping adds.
    """

    own: float
    others: float
    clipping: float

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return self.own + self.others + self.clipping


def approximation_term(
    number: int,
    *,
    rkhs_bound: float,
    approximation_error: float,
    num_features: int,
    distance: float,
    information_gain: float,
) -> float:
    r"""Return :math:`\Delta_{n,t}`, the error from the vector of one agent.

    Args:
        number: The round t, from 1 on.
        rkhs_bound: The bound B on the norms of the functions.
        approximation_error: The largest error :math:`\varepsilon` of the features.
        num_features: The number M of features.
        distance: The largest difference :math:`d_n` of this agent's function and that
            of agent 1.
        information_gain: The maximum information gain of t observations.

    Example:
        >>> approximation_term(
        ...     2, rkhs_bound=1.0, approximation_error=0.5, num_features=49,
        ...     distance=0.25, information_gain=4.0,
        ... )
        12.25
    """
    t = check_count("number", number)
    bound = check_nonnegative("rkhs_bound", rkhs_bound)
    return (
        check_nonnegative("approximation_error", approximation_error) * bound * t**2
        + bound
        + math.sqrt(check_count("num_features", num_features))
        + check_nonnegative("distance", distance)
        + math.sqrt(check_nonnegative("information_gain", information_gain))
    )


def sharing_term(
    follow: float,
    weights: Tensor,
    approximation: float,
    *,
    clip_norm: float,
    noise_multiplier: float,
    sampling_rate: float,
    num_features: int,
) -> float:
    r"""Return :math:`\psi_t`, the error from following the broadcast.

    Args:
        follow: The probability :math:`1 - p_t` of following the broadcast.
        weights: The ``P x N`` weights :math:`\varphi_n^{(i)}` of the round.
        approximation: The sum :math:`\sum_n \Delta_{n,t}`.
        clip_norm: The bound S.
        noise_multiplier: The ratio z of noise to sensitivity; 0 for no noise.
        sampling_rate: The probability q that an agent is in a sample.
        num_features: The number M of features.

    Example:
        >>> weights = torch.full((2, 4), 0.25)  # P x N
        >>> sharing_term(
        ...     0.5, weights, 16.0, clip_norm=2.0, noise_multiplier=1.0,
        ...     sampling_rate=0.5, num_features=16,
        ... )
        12.0
    """
    check_tensor("weights", weights, ("P", "N"))
    noise = check_nonnegative("noise_multiplier", noise_multiplier) * check_positive(
        "clip_norm", clip_norm
    )
    error = check_nonnegative("approximation", approximation)
    error += noise * math.sqrt(check_count("num_features", num_features))
    scale = len(weights) * float(weights.max())
    scale /= check_positive("sampling_rate", sampling_rate)
    return check_nonnegative("follow", follow) * scale * error


def clipping_term(follow: float, weights: Tensor, num_clipped: int) -> float:
    r"""Return the largest :math:`\vartheta_t` if so many vectors are clipped.

    Args:
        follow: The probability :math:`1 - p_t` of following the broadcast.
        weights: The ``P x N`` weights of the round.
        num_clipped: A bound on the number of vectors that are clipped.

    Example:
        >>> clipping_term(0.5, torch.full((2, 4), 0.25), num_clipped=4)
        1.0
    """
    check_tensor("weights", weights, ("P", "N"))
    count = min(check_count("num_clipped", num_clipped, minimum=0), weights.shape[1])
    largest = weights.sum(dim=0).topk(count).values
    return check_nonnegative("follow", follow) * float(largest.sum())


def regret_terms(
    num_rounds: int,
    *,
    weights: Callable[[int], Tensor],
    follow: Callable[[int], float],
    information_gain: Callable[[int], float],
    distances: Sequence[float],
    rkhs_bound: float,
    approximation_error: float,
    num_features: int,
    clip_norm: float,
    noise_multiplier: float,
    sampling_rate: float,
    num_clipped: int,
) -> RegretTerms:
    r"""Return the terms of [Dai2021dpfts]_, Theorem 1, after T rounds.

    Args:
        num_rounds: The number T of rounds.
        weights: The ``P x N`` weights of a round, from 0 on.
        follow: The probability :math:`1 - p_t` of a round, from 1 on.
        information_gain: The maximum information gain of so many observations.
        distances: The largest difference :math:`d_n` of the functions of each agent and
            of agent 1.
        rkhs_bound: The bound B on the norms of the functions.
        approximation_error: The largest error :math:`\varepsilon` of the features.
        num_features: The number M of features.
        clip_norm: The bound S.
        noise_multiplier: The ratio z of noise to sensitivity; 0 for no noise.
        sampling_rate: The probability q that an agent is in a sample.
        num_clipped: A bound on the number of vectors that are clipped in a round.

    Returns:
        The terms. The first is infinite if agents always follow the first broadcast.

    Example:
        >>> from botorch_dp.optimizers.fts.weights import ExplorationWeights
        >>> weights = ExplorationWeights(torch.arange(100) % 2, num_regions=2)
        >>> terms = regret_terms(
        ...     40, weights=weights, follow=lambda t: 0.5 / t**2,
        ...     information_gain=lambda t: math.log(1 + t) ** 2, distances=[0.1] * 100,
        ...     rkhs_bound=1.0, approximation_error=0.1, num_features=50,
        ...     clip_norm=11.0, noise_multiplier=1.0, sampling_rate=0.25,
        ...     num_clipped=1,
        ... )
        >>> terms.own > terms.others > terms.clipping
        True
    """
    T = check_count("num_rounds", num_rounds)
    num_agents = weights(0).shape[1]
    if len(distances) != num_agents:
        raise InvalidArgumentError(
            f"distances must be one number for each of {num_agents} agents, got "
            f"{len(distances)}."
        )
    others = clipping = 0.0
    for t in range(1, T + 1):
        same = approximation_term(
            t,
            rkhs_bound=rkhs_bound,
            approximation_error=approximation_error,
            num_features=num_features,
            distance=0.0,
            information_gain=information_gain(t),
        )
        # In round t agents follow the broadcast of round t - 1.
        phi = weights(t - 1)
        others += sharing_term(
            follow(t),
            phi,
            num_agents * same + sum(distances),
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            num_features=num_features,
        )
        clipping += rkhs_bound * clipping_term(follow(t), phi, num_clipped)
    first = 1.0 - follow(1)
    inverse = 1.0 / first if first > 0 else math.inf
    own = (rkhs_bound + inverse) * information_gain(T) * math.sqrt(T)
    return RegretTerms(own=own, others=others, clipping=clipping)
