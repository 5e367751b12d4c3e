r"""AdaGrad that shrinks coordinates in which the releases show nothing but noise.

The k releases of coordinate j are :math:`g_{1j}, \dots, g_{kj}`, each with noise of
the known variance :math:`\sigma^2`. If the coordinate does not matter, the sum of their
squares :math:`S_j` is about :math:`k \sigma^2`. The positive-part shrinkage of James
and Stein with the moment estimate of the signal's variance multiplies the coordinate by

.. math::
    f_j = \max\big(0, 1 - k \sigma^2 / S_j\big).

AdaGrad divides a gradient by the root of :math:`S_j` and would undo a factor on the
gradient, so the factor scales the step. All of this is computed from releases: it costs
no privacy. Without noise it is AdaGrad.

References:
    .. [Efron1973stein] B. Efron and C. Morris. Stein's Estimation Rule and Its
        Competitors: An Empirical Bayes Approach. JASA 1973.
    .. [Eriksson2021saas] D. Eriksson and M. Jankowiak. High-Dimensional Bayesian
        Optimization with Sparse Axis-Aligned Subspaces. UAI 2021. Few coordinates
        matter.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_EPSILON = 1e-10  # torch's AdaGrad


def shrinkage(squares: Tensor, counts: Tensor, noise_std: float) -> Tensor:
    """Return the factor of each coordinate.

    Args:
        squares: The sums of squares of the releases, a ``d`` tensor.
        counts: How many releases each sum has.
        noise_std: The standard deviation of their noise.

    Example:
        >>> squares, counts = torch.tensor([1.0, 8.0]), torch.tensor([2.0, 2.0])
        >>> shrinkage(squares, counts, noise_std=1.0)
        tensor([0.0000, 0.7500])
    """
    noise = counts * noise_std**2
    tiny = torch.finfo(squares.dtype).tiny
    return (1 - noise / squares.clamp(min=tiny)).clamp(min=0.0)


class SparseAdagrad(Optimizer):
    """AdaGrad with steps shrunk by :func:`shrinkage`.

    Args:
        params: The parameters.
        lr: The learning rate.
        initial_accumulator_value: The value at which sums of squares start.
        noise_std: The standard deviation of the gradients' noise. It may be set in
            ``param_groups`` before each step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.2,
        initial_accumulator_value: float = 0.0,
        noise_std: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "initial_accumulator_value": initial_accumulator_value,
            "noise_std": noise_std,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["squares"] = torch.zeros_like(parameter)
            state["counts"] = torch.zeros_like(parameter)
        state["squares"] += gradient.square()
        state["counts"] += gradient != 0  # others were not released
        factor = shrinkage(state["squares"], state["counts"], group["noise_std"])
        total = state["squares"] + group["initial_accumulator_value"]
        parameter -= group["lr"] * factor * gradient / (total.sqrt() + _EPSILON)
