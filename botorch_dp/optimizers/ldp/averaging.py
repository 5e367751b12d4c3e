r"""Averages of iterates in constant memory: steadier than the last one under noise."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_positive
from botorch_dp.exceptions import InvalidArgumentError

AVERAGES = ("suffix", "running", "exponential", "last")


class IterateAverage:
    r"""An average of the iterates seen so far.

    * ``"running"``: of all of them, as in Polyak's and the paper's averages. The way
      from the start weighs as much as the end.
    * ``"suffix"``: of the last half to three quarters of them: those since the last but
      one power of two, for which two sums suffice.
    * ``"exponential"``: weights that halve every ``half_life`` steps: follows a drift.
    * ``"last"``: no average.

    Args:
        kind: One of the above.
        x: A ``batch_shape x d`` tensor: what to report before any iterate.
        half_life: In steps, for ``"exponential"``.

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
                "half_life must be given with average='exponential', and only then; "
                f"got average={kind!r}, half_life={half_life!r}."
            )
        self.half_life = None
        if half_life is not None:
            self.half_life = check_positive("half_life", half_life)
        self._last = x
        self._count = 0
        # Sums and their weights: up to the last power of two, and since. In double
        # precision: a stream may be long.
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
        """Take one more iterate, ``batch_shape x d``."""
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

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to go on."""
        return {
            "last": self._last.clone(),
            "before": self._before.clone(),
            "since": self._since.clone(),
            "weights": [self._before_weight, self._since_weight],
            "count": self._count,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state of an average of the same kind and shape."""
        tensors = [state_dict[key] for key in ("last", "before", "since")]
        if any(tensor.shape != self._last.shape for tensor in tensors):
            raise InvalidArgumentError(
                f"state_dict must be of an average of shape {tuple(self._last.shape)}."
            )
        before, since = map(float, state_dict["weights"])
        count = int(state_dict["count"])
        weighed = self.kind == "last" or count == 0 or before + since > 0
        if not (
            weighed and min(before, since, count) >= 0 and before + since < math.inf
        ):
            raise InvalidArgumentError(
                f"state_dict must have weights, got {before!r} and {since!r}."
            )
        if not all(tensor.isfinite().all() for tensor in tensors):
            raise InvalidArgumentError("state_dict must be finite.")
        self._last = tensors[0].to(self._last)
        self._before, self._since = (t.to(self._since) for t in tensors[1:])
        self._before_weight, self._since_weight = before, since
        self._count = count
