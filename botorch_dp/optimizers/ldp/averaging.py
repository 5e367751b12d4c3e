"""Averages of iterates in constant memory. Under noise they vary less than iterates."""

from math import inf
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_nonnegative,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.state import Stateful

AVERAGES = ("suffix", "running", "exponential", "last")


class IterateAverage(Stateful):
    """An average of the iterates seen so far.

    * ``"running"``: all iterates, as in Polyak's and the paper's averages. The first
      ones weigh as much as the last.
    * ``"suffix"``: the last half to three quarters of the iterates, namely those since
      the last but one power of two. Two sums suffice for it.
    * ``"exponential"``: weights that halve every ``half_life`` steps, for drifts.
    * ``"last"``: the last iterate.

    Args:
        kind: One of the above.
        x: The value to report before the first iterate, a ``batch_shape x d`` tensor.
        half_life: The half-life of ``"exponential"``, in steps.

    Example:
        >>> average = IterateAverage("running", torch.zeros(1))
        >>> for value in (1.0, 3.0):
        ...     average.update(torch.tensor([value]))
        >>> average.value
        tensor([2.])
    """

    def __init__(self, kind: str, x: Tensor, *, half_life: float | None = None) -> None:
        self.kind = check_choice("average", kind, AVERAGES)
        if (half_life is None) == (kind == "exponential"):
            raise InvalidArgumentError(
                "half_life must be given if and only if average='exponential', got "
                f"average={kind!r}, half_life={half_life!r}."
            )
        self.half_life = None
        if half_life is not None:
            self.half_life = check_positive("half_life", half_life)
        self._last = x
        self._count = 0
        # Sums and their weights, before and since the last power of two. They are in
        # double precision because a stream may be long.
        self._before = torch.zeros_like(x, dtype=torch.float64)
        self._since = torch.zeros_like(x, dtype=torch.float64)
        self._before_weight = self._since_weight = 0.0

    @property
    def value(self) -> Tensor:
        """The average, ``batch_shape x d``."""
        if self.kind == "last" or self._count == 0:
            return self._last
        weight = self._before_weight + self._since_weight
        return ((self._before + self._since) / weight).to(self._last)

    def update(self, x: Tensor) -> None:
        """Add an iterate, ``batch_shape x d``."""
        self._count += 1
        if self.kind == "last":
            self._last = x
            return
        if self.kind == "suffix" and self._count & (self._count - 1) == 0:
            self._before, self._before_weight = self._since, self._since_weight
            self._since, self._since_weight = torch.zeros_like(self._since), 0.0
        if self.half_life is not None:
            decay = 0.5 ** (1.0 / self.half_life)
            self._since = decay * self._since + x
            self._since_weight = decay * self._since_weight + 1.0
        else:
            self._since = self._since + x
            self._since_weight += 1.0

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": "average of iterates",
            "average": self.kind,
            "half_life": self.half_life,
            "shape": list(self._last.shape),
        }

    def _state(self) -> dict[str, Any]:
        return {
            "last": self._last,
            "before": self._before,
            "since": self._since,
            "weights": [self._before_weight, self._since_weight],
            "count": self._count,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        for key in ("last", "before", "since"):
            check_tensor(key, state[key], self._last.shape, finite=True)
        before, since = (check_nonnegative("weights", w) for w in state["weights"])
        count = check_count("count", state["count"], minimum=0)
        if count and self.kind != "last" and not 0 < before + since < inf:
            raise ValueError(f"weights {before!r} and {since!r} of {count} iterates")

    def _restore(self, state: dict[str, Any]) -> None:
        self._last = state["last"].to(self._last)
        self._before = state["before"].to(self._before)
        self._since = state["since"].to(self._since)
        self._before_weight, self._since_weight = map(float, state["weights"])
        self._count = state["count"]
