r"""Step sizes for a stream, computed from public facts alone.

References:
    .. [Nemirovski2009robust] A. Nemirovski, A. Juditsky, G. Lan and A. Shapiro. Robust
        Stochastic Approximation Approach to Stochastic Programming. SIAM Journal on
        Optimization, 2009. Section 2.2.
"""

import math
from dataclasses import dataclass

from botorch_dp._validation import (
    check_clip_norm,
    check_count,
    check_nonnegative,
    check_positive,
)
from botorch_dp.optimizers.ldp.gradient_release import longest_message


@dataclass(frozen=True)
class StepSchedule:
    r"""The step size :math:`\eta_t = \eta_0 (t + t_0)^{-\alpha}`.

    Args:
        initial: The factor :math:`\eta_0`, above 0.
        power: The power :math:`\alpha` of the decay; 0 keeps the step size constant, to
            follow a drift.
        offset: The number :math:`t_0` of initial steps, the largest, that are left out.
        longest_message: The longest gradient that the schedule is made for, if any.
            :class:`LDPBOServer` refuses longer ones.

    Example:
        >>> StepSchedule(initial=0.2, power=0.5)(4)
        0.1
    """

    initial: float
    power: float = 0.5
    offset: int = 0
    longest_message: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "initial", check_positive("initial", self.initial))
        object.__setattr__(self, "power", check_nonnegative("power", self.power))
        check_count("offset", self.offset, minimum=0)
        if self.longest_message is not None:
            check_positive("longest_message", self.longest_message)

    def __call__(self, step: int) -> float:
        """Return the size of a step, counted from 1."""
        return self.initial * (step + self.offset) ** -self.power

    @classmethod
    def for_noise(
        cls, *, radius: float, clip_norm: float, noise_std: float, dim: int
    ) -> "StepSchedule":
        r"""Return the schedule :math:`R / (2 G \sqrt{t + 100})` for noisy gradients.

        With clipped gradients and noise of variance :math:`\sigma^2` on each of p
        numbers, a message has mean square at most :math:`G^2 = B^2 + p \sigma^2`. From
        a start within R of the minimum of a convex loss, steps proportional to
        :math:`R / (G \sqrt t)` bring the loss of the average within a constant factor
        of the best possible bound for all such problems ([Nemirovski2009robust]_). The
        factor one half and the 100 steps left out ensure that the noise of the first T
        steps does not move the parameter further than
        :math:`R \sqrt{\log(1 + T / 100)} / 2`. They were chosen on generated linear and
        logistic regressions in 2, 5 and 20 dimensions. All of this is public. The
        schedule also includes :func:`longest_message`.

        Args:
            radius: How far from the start the minimum may be: a guess made without
                private data.
            clip_norm: The bound B on a user's gradient.
            noise_std: The standard deviation of the noise on each number; the largest
                one if users differ.
            dim: The number p of parameters.
        """
        radius = check_positive("radius", radius)
        clip_norm = check_clip_norm("clip_norm", clip_norm)
        noise_std = check_nonnegative("noise_std", noise_std)
        scale = math.hypot(clip_norm, noise_std * math.sqrt(check_count("dim", dim)))
        return cls(
            initial=0.5 * radius / scale,
            power=0.5,
            offset=100,
            longest_message=longest_message(
                clip_norm=clip_norm, noise_std=noise_std, dim=dim
            ),
        )
