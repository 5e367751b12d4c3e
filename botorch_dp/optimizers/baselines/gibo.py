"""GIBO, which is not private.

References:
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.baselines.searches import not_private
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import Losses, with_record_dim
from botorch_dp.optimizers.gibo.dp_gibo import GradientInformationDescent
from botorch_dp.optimizers.gibo.geometry import GIBOGeometry
from botorch_dp.optimizers.gibo.updates import Update
from botorch_dp.privacy import Certificate

# A bound that no gradient reaches, for an optimizer that does not clip.
_NO_CLIPPING = 1e30


class GIBO(GradientInformationDescent):
    """Gradient-information Bayesian optimization without privacy [Mueller2021local]_.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records; 1 for a function without records, whose
            ``b`` values may then be told as they are.
        num_steps: The number of steps.
        clip_norm: A bound on a record's gradient, as DP-GIBO has it; none by default.
        transform: The search coordinates, see :class:`SearchBox`.
        update: ``"adagrad"``, ``"sgd"``, or a ``torch.optim`` class.
        step_size: Its learning rate, in search coordinates.
        initial_x: Where to start; the centre of the box by default.
        **kwargs: The arguments of :class:`DPGIBO` for the surrogate and its points:
            ``batch_size``, ``kernel``, ``noise_variance``, ``mean``, ``window``,
            ``tolerance`` and ``search``.
    """

    name = "gibo"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        clip_norm: float = _NO_CLIPPING,
        *,
        transform: str | Sequence[str] = "linear",
        update: Update = "adagrad",
        step_size: float | None = None,
        initial_x: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        refused = {"adjacency", "guarantee", "ledger", "generator", "secure"} & {
            *kwargs
        }
        if refused:
            raise InvalidArgumentError(
                f"GIBO releases nothing, and takes no {', '.join(sorted(refused))}."
            )
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            num_steps=num_steps,
            clip_norm=clip_norm,
            transform=transform,
            update=update,
            step_size=step_size,
            initial_x=initial_x,
        )
        self._start(GIBOGeometry(self._box.box, self._parameter, **kwargs))

    def certificate(self) -> Certificate:
        """Return a certificate that guarantees nothing."""
        return not_private(self)

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        losses = with_record_dim(losses, self.num_records, len(points))
        return super()._learn(losses, points)

    def _release(self, private_mean: Tensor) -> Tensor:
        return private_mean
