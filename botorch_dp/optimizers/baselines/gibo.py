"""GIBO, which is not private.

References:
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021.
"""

from typing import Any

from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.baselines.searches import not_private
from botorch_dp.optimizers.gibo.dp_gibo import DPGIBO
from botorch_dp.privacy import GDP, Certificate, PrivacyEvent

# A bound that no gradient reaches, for an optimizer that does not clip.
_NO_CLIPPING = 1e30


class GIBO(DPGIBO):
    """Gradient-information Bayesian optimization without privacy [Mueller2021local]_.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records.
        num_steps: The number of steps.
        clip_norm: A bound on a record's gradient, as DP-GIBO has it; none by default.
        **kwargs: As for :class:`DPGIBO`.
    """

    name = "gibo"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        clip_norm: float = _NO_CLIPPING,
        **kwargs: Any,
    ) -> None:
        refused = {"guarantee", "ledger", "generator", "secure"} & set(kwargs)
        if refused:
            raise InvalidArgumentError(
                f"GIBO releases nothing, and takes no {', '.join(sorted(refused))}."
            )
        # The guarantee is never used.
        super().__init__(bounds, num_records, GDP(1.0), num_steps, clip_norm, **kwargs)

    @property
    def noise_std(self) -> float:
        """Zero: there is no noise."""
        return 0.0

    def certificate(self) -> Certificate:
        """Say that nothing is guaranteed."""
        return not_private(self)

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, and how many there are of it."""
        return []

    def _release(self, private_mean: Tensor) -> Tensor:
        self._num_charged += 1
        return private_mean

    def _keep_ledger_at(self, path: str) -> None:
        del path

    def _num_due(self, num_steps: int) -> int:
        return 0

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._num_charged = len(self._history)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "guarantee": None}
