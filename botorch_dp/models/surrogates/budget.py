r"""How small the compression error must be, from public facts alone.

The budget :math:`\kappa` of a dictionary is the root mean squared error of a partial
derivative. It is an offset that the users of many steps share, so it does not average
out as their noise does. The mean of t messages, each with variance v in each
coordinate, has a standard error of :math:`\sqrt{v / t}`. A constant budget exceeds that
in a long stream, and then the parameter stops where the compressed gradient is zero,
not where the gradient is. So the budget here falls like :math:`1 / \sqrt t`.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from botorch_dp._validation import (
    check_clip_norm,
    check_count,
    check_nonnegative,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError

# SHARE was chosen on linear streams without privacy, with other dimensions, parameters
# and seeds than those of the paper's tables. In 3 dimensions after 10,000 users the
# error is 0.326, 0.332, 0.464 and 0.885 e-3 with 1, 2, 4 and 8, and 0.342 e-3 with a
# stencil.
SHARE = 2.0
# With p + 1 points, noise of 1e-6 of the prior variance leaves about sqrt(2e-6) of it,
# the square of 0.038. Below that the dictionary needs more points and a search in most
# steps: in 8 dimensions 0.02 took 19 points and 4 times as long as 0.05.
LEAST = 0.04
MOST = 0.1


@dataclass(frozen=True)
class BudgetSchedule:
    r"""The budget :math:`\kappa_t = c / \sqrt t`, between two limits.

    Args:
        scale: The factor c, 0 or more.
        least: The smallest budget. Below 0.04 the noise that keeps the default
            dictionary well conditioned makes most steps search for points.
        most: The largest budget, for the first steps.

    Example:
        >>> schedule = BudgetSchedule(scale=2.0)
        >>> schedule(1), schedule(1600), schedule(10**6)
        (0.1, 0.05, 0.04)
    """

    scale: float
    least: float = LEAST
    most: float = MOST

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_nonnegative("scale", self.scale))
        object.__setattr__(self, "least", check_positive("least", self.least))
        object.__setattr__(self, "most", check_positive("most", self.most))
        if self.least > self.most:
            raise InvalidArgumentError(
                f"least must not exceed most, got {self.least!r} and {self.most!r}."
            )

    def __call__(self, step: int) -> float:
        """Return the budget of a step, counted from 1."""
        return min(self.most, max(self.least, self.scale / math.sqrt(step)))

    def settings(self) -> dict[str, Any]:
        """Return the parameters, as plain values."""
        return asdict(self)

    @classmethod
    def for_noise(
        cls, *, clip_norm: float, noise_std: float, dim: int
    ) -> "BudgetSchedule":
        r"""Return the schedule for messages with this bound and this noise.

        A message has variance at most :math:`v = B^2 / p + s^2` per coordinate, on
        average over coordinates. The scale is twice the root of v. All of this is
        public.

        Args:
            clip_norm: The bound B on a user's gradient.
            noise_std: The standard deviation s of the noise on each number; 0 without
                privacy.
            dim: The number p of parameters.

        Example:
            >>> facts = {"clip_norm": 2.0, "dim": 4}
            >>> round(BudgetSchedule.for_noise(noise_std=0.0, **facts).scale, 3)
            2.0
            >>> round(BudgetSchedule.for_noise(noise_std=3.0, **facts).scale, 3)
            6.325
        """
        dim = check_count("dim", dim)
        bound = check_clip_norm("clip_norm", clip_norm)
        noise = check_nonnegative("noise_std", noise_std)
        return cls(SHARE * math.hypot(bound / math.sqrt(dim), noise))

    @classmethod
    def from_messages(cls, messages: Tensor) -> "BudgetSchedule":
        """Return the schedule for the spread of messages that were received.

        The messages are released gradients, of a first part of the stream, which may be
        followed in ``mode="stencil"``. Their use costs no privacy. The mean square that
        is measured here is at most the bound of :meth:`for_noise`, so the budget is at
        most as large. It differs where the gradients of users are much shorter than the
        clip norm and the noise is small; under strong noise both are equal. The paper
        proposes to cross-validate on a prefix of the private stream, which is not
        private.

        Args:
            messages: A ``... x n x p`` tensor of released gradients; all of them count.

        Example:
            >>> import torch
            >>> messages = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
            >>> BudgetSchedule.from_messages(messages).scale
            7.0710678...
        """
        check_tensor("messages", messages, ("...", "n", "p"), finite=True)
        if not messages.numel():
            raise InvalidArgumentError(
                f"messages must not be empty, got shape {tuple(messages.shape)}."
            )
        return cls(SHARE * math.sqrt(float(messages.double().square().mean())))
