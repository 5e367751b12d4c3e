r"""A plan for DP-GIBO from public facts: steps, stencil, clip norm and step sizes.

Everything is in search coordinates, where the box is the unit cube, and for losses in a
range of width R. With T steps, each of which spends :math:`\mu / \sqrt{T}`:

* **The radius h of the stencil.** Losses at distance h give a gradient with an error of
  the order of h (curvature) and noise of the order of 1/h.
  The sum is least for h in proportion to the cube root of the noise,
  :math:`h = 0.33 (d \sqrt{T} / (n \mu))^{1/3}`, between 0.03 and
  :math:`0.1 \sqrt{d}`. It shrinks from 1.7 h to h / 1.7 over the first half of the
  steps. In up to six dimensions the stencil is a pair of points in every direction,
  whose error is of the order of :math:`h^2`, otherwise a simplex.
* **The clip norm B.** A simplex of radius h gives a record a gradient of at most
  :math:`\sqrt{d} R / (2 h)`, so B is never larger. Below that, it is the larger of a
  share of the range, :math:`R \min(1/4, 0.6 / \sqrt{d})`, and what noise of
  :math:`\max(0.003, 0.1 / d) R` allows.
* **The steps.** AdaGrad divides by the root of the sum of squared gradients. Its first
  steps would all be 0.2 in every coordinate, whatever the signal. The sum therefore
  starts at :math:`T \sigma^2`, what noise alone adds to it in the whole run.
* **Few evaluations.** There are 20 steps, fewer of d + 1 points if fewer points may be
  evaluated. Below 2 (d + 1) points there are two steps, each of which looks at k random
  coordinates instead of all d. Their gradients are shorter by :math:`\sqrt{k / d}`, and
  so is the clip norm.

The constants were chosen on one half of the cells of ``benchmarks/arena.py`` and on
earlier tasks like them, and judged on the other half, except the rule for few
evaluations, which was not judged on other tasks. ``docs/theory/descent_plan.md`` has
the reasoning.
"""

import math
from dataclasses import dataclass
from typing import Any

from botorch_dp._validation import check_count, check_positive, check_range
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.guarantees import Guarantee

_STEPS = 20
_STEP_SIZE = 0.2
_RADIUS, _LEAST_RADIUS, _MOST_RADIUS = 0.33, 0.03, 0.1
_SHRINKS = 1.7
# Up to this dimension, pairs of points are worth twice as many evaluations.
_MOST_DIMS_OF_PAIRS = 6
_LENGTH_SCALE, _LENGTH_SCALE_PER_ROOT = 0.5, 0.25


@dataclass(frozen=True, kw_only=True)
class DescentPlan:
    """The settings of a run of DP-GIBO, in search coordinates.

    Attributes:
        num_steps: The number T of steps.
        num_directions: How many coordinates of the gradient a step looks at.
        batch_size: The number of new points a step.
        radius: The radius h of the stencil; it shrinks during the run.
        length_scale: The length scale of the surrogate's RBF kernel.
        clip_norm: The bound B on a record's gradient.
        noise_std: The standard deviation of the noise in each coordinate of a step.
        step_size: The learning rate of AdaGrad.
        initial_accumulator: The value at which AdaGrad's sum of squares starts.
        num_records: The number n of records that the plan is for.
        dim: The number d of parameters.
        mu: The mu of the guarantee for all steps together.
    """

    num_steps: int
    num_directions: int
    batch_size: int
    radius: float
    length_scale: float
    clip_norm: float
    noise_std: float
    step_size: float
    initial_accumulator: float
    num_records: int
    dim: int
    mu: float

    @property
    def num_evaluations(self) -> int:
        """The number of points that the whole run evaluates."""
        return self.num_steps * self.batch_size

    @property
    def noise_variances(self) -> tuple[float, ...]:
        """The noise variance s^2 of the surrogate in each step, which sets the radius.

        For an RBF kernel of length scale l, the best simplex has the radius
        l (2 s^2)^(1/4), and the best pairs of points l (1.5 s^2)^(1/6).
        """
        shares = (min(1.0, 2 * t / self.num_steps) for t in range(self.num_steps))
        radii = [
            self.radius / self.length_scale * _SHRINKS ** (1 - 2 * share)
            for share in shares
        ]
        if self.batch_size == 2 * self.num_directions:
            return tuple(radius**6 / 1.5 for radius in radii)
        return tuple(radius**4 / 2 for radius in radii)

    def __str__(self) -> str:
        among = "" if self.num_directions == self.dim else f" of {self.dim}"
        return (
            f"DP-GIBO: {self.num_steps} steps in {self.num_directions}{among} "
            f"dimensions, {self.num_evaluations} evaluations,\n"
            f"stencil radius {self.radius:.3g}, gradients clipped to "
            f"{self.clip_norm:.3g}, noise {self.noise_std:.2g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return dict(vars(self))


def plan_descent(
    *,
    num_records: int,
    dim: int,
    guarantee: Guarantee,
    loss_range: tuple[float, float] | None = None,
    clip_norm: float | None = None,
    num_steps: int | None = None,
    num_directions: int | None = None,
    max_evaluations: int | None = None,
    moves: float = 2.0,
) -> DescentPlan:
    """Plan a run of DP-GIBO from public facts alone.

    Args:
        num_records: The number n of records.
        dim: The number d of parameters.
        guarantee: The privacy of the whole run: ``GDP``, ``ApproxDP`` or ``RDP``.
        loss_range: The range of a record's loss. It must be a property of the loss, not
            of the data. Needed unless ``clip_norm`` is given.
        clip_norm: The bound on a record's gradient, if it is not to be planned.
        num_steps: The number of steps, if it is not to be planned.
        num_directions: The number of coordinates a step, if it is not to be planned.
        max_evaluations: How many points may be evaluated in all. By default 40 d up to
            six dimensions, 20 (d + 1) beyond.
        moves: How far a record that is clipped to 1 can move the sum of all records: 2
            if it is replaced, 1 if it is left out.

    Raises:
        InvalidArgumentError: If neither ``loss_range`` nor ``clip_norm`` is given, or
            if ``max_evaluations`` is too small for a gradient.

    Example:
        >>> from botorch_dp.privacy import GDP
        >>> plan = plan_descent(
        ...     num_records=1000, dim=5, guarantee=GDP(1.0), loss_range=(0.0, 1.0)
        ... )
        >>> print(plan)
        DP-GIBO: 20 steps in 5 dimensions, 200 evaluations,
        stencil radius 0.093, gradients clipped to 2.24, noise 0.02
    """
    n, d = check_count("num_records", num_records), check_count("dim", dim)
    mu = check_guarantee("guarantee", guarantee).to_gdp().mu
    steps, directions = _steps_and_directions(
        d if num_directions is None else min(d, num_directions),
        num_steps,
        max_evaluations,
    )
    batch_size = directions + 1
    if d <= _MOST_DIMS_OF_PAIRS and directions == d:
        allowed = 2 * d * steps if max_evaluations is None else max_evaluations
        batch_size = max(batch_size, 2 * d) if 2 * d * steps <= allowed else batch_size
    # What a step's noise would be if gradients were clipped to 1.
    unit_noise = check_positive("moves", moves) * math.sqrt(steps) / (n * mu)
    cube_root = (d * unit_noise / moves) ** (1 / 3)
    radius = min(max(_RADIUS * cube_root, _LEAST_RADIUS), _MOST_RADIUS * math.sqrt(d))
    if clip_norm is None:
        clip_norm = _clip_norm(d, unit_noise, radius, loss_range)
        clip_norm *= math.sqrt(directions / d)
    noise_std = unit_noise * check_positive("clip_norm", clip_norm)
    return DescentPlan(
        num_steps=steps,
        num_directions=directions,
        batch_size=batch_size,
        radius=radius,
        length_scale=max(_LENGTH_SCALE, _LENGTH_SCALE_PER_ROOT * math.sqrt(d)),
        clip_norm=clip_norm,
        noise_std=noise_std,
        step_size=_STEP_SIZE,
        initial_accumulator=steps * noise_std**2 * directions / d,
        num_records=n,
        dim=d,
        mu=mu,
    )


def _steps_and_directions(
    d: int, num_steps: int | None, max_evaluations: int | None
) -> tuple[int, int]:
    """Return how many steps to take, and how many coordinates each looks at."""
    if max_evaluations is None:
        return check_count("num_steps", _STEPS if num_steps is None else num_steps), d
    allowed = check_count("max_evaluations", max_evaluations, minimum=2)
    if num_steps is not None:
        steps = check_count("num_steps", num_steps)
        if allowed < 2 * steps:
            raise InvalidArgumentError(
                f"max_evaluations must be at least {2 * steps}, two for each of "
                f"num_steps={steps} steps, got {max_evaluations!r}."
            )
        return steps, min(d, allowed // steps - 1)
    # A simplex in all dimensions is worth more than further steps, but for the second.
    steps = min(_STEPS, max(allowed // (d + 1), min(2, allowed // 2)))
    return steps, min(d, allowed // steps - 1)


def _clip_norm(
    d: int,
    unit_noise: float,
    radius: float,
    loss_range: tuple[float, float] | None,
) -> float:
    if loss_range is None:
        raise InvalidArgumentError(
            "Give loss_range, the range (low, high) of a record's loss, or clip_norm, "
            "a bound on a record's gradient where the box is the unit cube. Neither "
            "may be computed from private data."
        )
    low, high = check_range("loss_range", loss_range)
    share = min(0.25, 0.6 / math.sqrt(d))
    affordable = max(0.003, 0.1 / d) / unit_noise
    return (high - low) * min(max(share, affordable), math.sqrt(d) / (2 * radius))
