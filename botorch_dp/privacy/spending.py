"""How much privacy was spent, in the unit of a budget."""

import math
from dataclasses import dataclass

from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee, PureDP

# Sums of squares that should reach a cap exactly exceed it by a few units in the last
# place. A cap counts as exceeded beyond this relative excess.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Spending:
    """The privacy spent, in the unit of the budget that it is compared with.

    Attributes:
        amount: An upper bound; infinite if this unit cannot express the cost.
        unit: ``"epsilon"``, ``"mu"`` or ``"Renyi epsilon"``.
        method: The accounting that gave the bound.
    """

    amount: float
    unit: str
    method: str

    def within(self, limit: float) -> bool:
        """Return whether the amount is within ``limit``, up to rounding."""
        return self.amount <= limit * (1 + _ROUNDING)

    def left(self, limit: float) -> float:
        """Return how much more fits under ``limit``; the squares of mu add up."""
        if self.unit == "mu":
            return math.sqrt(max(0.0, limit**2 - self.amount**2))
        return max(0.0, limit - self.amount)


def budget_limit(budget: Guarantee) -> float:
    """Return the number in a budget that spending is compared with."""
    if isinstance(budget, GDP):
        return budget.mu
    assert isinstance(budget, PureDP | ApproxDP | RDP)
    return budget.epsilon
