"""Plans from public numbers: how much to evaluate, and at which candidates."""

import torch
from torch import Tensor

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError

# Bounds on the number of evaluations if the caller gives none.
_FEWEST, _MOST = 16, 200


def default_evaluations(num_records: int, epsilon: float) -> int:
    """Return how many candidates to evaluate for a choice of pure ``epsilon``.

    A choice among N candidates costs about 2 R log(N) / (n epsilon), which grows slowly
    with N, while more candidates come closer to the best point. The rule is N = n
    epsilon / 2, between 16 and 200.

    Args:
        num_records: The number n of records.
        epsilon: The epsilon of the choice.
    """
    return int(max(_FEWEST, min(_MOST, round(num_records * epsilon / 2))))


def plan_steps(
    num_steps: int | None,
    batch_size: int | None,
    max_evaluations: int | None,
    *,
    planned: int | None,
    num_candidates: int | None,
    in_batches: bool,
) -> tuple[int, int]:
    """Return the number of steps and of points in a step.

    Args:
        num_steps: The number of steps, as the caller gave it.
        batch_size: The number of points in a step, as the caller gave it.
        max_evaluations: The largest number of points, as the caller gave it.
        planned: How many points to evaluate by default; None if there is no default.
        num_candidates: The number of candidates; None if there are enough of them.
        in_batches: Whether all points may be evaluated in one step.
    """
    if num_candidates is not None:
        check_count("num_candidates", num_candidates, minimum=2)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if num_steps is not None:
        if max_evaluations is not None:
            raise InvalidArgumentError(
                "max_evaluations must be None if num_steps is given, got "
                f"{max_evaluations!r} and num_steps={num_steps!r}."
            )
        return check_count("num_steps", num_steps), batch_size or 1
    if planned is None:
        raise InvalidArgumentError(
            "num_steps must be given: only a stable release plans it by itself."
        )
    if max_evaluations is not None:
        planned = min(planned, check_count("max_evaluations", max_evaluations))
    if num_candidates is not None:
        planned = min(planned, num_candidates)
    if batch_size is None:
        batch_size = planned if in_batches else 1
    size = min(batch_size, planned)
    return planned // size, size


def spread_out(points: Tensor, count: int, start: int | None = None) -> list[int]:
    """Return the indices of points that fill the space of all, each only once.

    Every point is the one farthest from those before it.

    Args:
        points: An ``N x d`` tensor.
        count: How many to choose, at most N. If it is N, the others follow in order.
        start: The index of the first; by default the point nearest to the centre of
            the smallest box around all points.
    """
    if start is None:
        centre = (points.amin(dim=0) + points.amax(dim=0)) / 2
        start = int(_squared_distances(points, centre).argmin())
    if count >= len(points):
        return [start, *(i for i in range(len(points)) if i != start)]
    chosen = [start]
    nearest = _squared_distances(points, points[start])
    while len(chosen) < count:
        nearest[chosen[-1]] = -1.0  # never twice, even if points coincide
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, _squared_distances(points, points[chosen[-1]]))
    return chosen


def _squared_distances(points: Tensor, x: Tensor) -> Tensor:
    return (points - x).square().sum(dim=-1)
