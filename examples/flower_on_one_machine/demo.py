"""The agents' score functions: their peaks are similar, but not the same."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def score(agent: int, points: Tensor) -> Tensor:
    """Return an agent's scores: a peak near (0.62, 0.38), and ripples.

    Args:
        agent: The index of the agent, which moves its peak a little.
        points: A ``k x D`` tensor in the unit cube.

    Example:
        >>> points = torch.tensor([[0.6, 0.4], [0.1, 0.9]], dtype=torch.float64)
        >>> scores = score(3, points)
        >>> scores.shape, bool(scores[0] > scores[1])
        (torch.Size([2]), True)
    """
    steps = torch.arange(points.shape[-1], device=points.device, dtype=points.dtype)
    center = 0.5 + 0.12 * torch.cos(math.pi * steps)
    moved = center + 0.05 * torch.sin(2.4 * agent + steps)
    distance = (points - moved).square().sum(dim=-1)
    ripple = torch.cos(12.0 * (points - moved)).mean(dim=-1)
    return torch.exp(-4.0 * distance) + 0.1 * ripple


def accuracies(agent: int, candidates: Sequence[dict[str, float]]) -> list[float]:
    """Return an agent's scores for a vote: the best rate is near 0.1 for all agents.

    Args:
        agent: The index of the agent, which moves its best rate a little.
        candidates: The candidates, with a ``"rate"`` each.

    Example:
        >>> [round(score, 2) for score in accuracies(3, [{"rate": 1.0}, {"rate": 0.1}])]
        [0.84, 0.89]
    """
    best = -1.0 + 0.3 * math.sin(2.4 * agent)
    return [
        0.9 - 0.1 * (math.log10(candidate["rate"]) - best) ** 2
        for candidate in candidates
    ]
