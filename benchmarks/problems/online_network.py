r"""Neural networks trained online: the baseline of Example 5.2 of [LDPBO2025]_.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
    .. [Kingma2015adam] D. P. Kingma and J. Ba. Adam: A Method for Stochastic
        Optimization. ICLR, 2015.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from botorch_dp._validation import check_count, check_positive, describe
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems.streams import check_seed, numbered_generator

# The constants of [Kingma2015adam].
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class OnlineNeuralNetwork:
    r"""One small regression network for each replication, trained pair by pair.

    **Not private**: it uses raw pairs, so its weights and predictions reveal them. It
    is only for comparison.

    Layers are linear with rectifiers between them; the loss is the squared error, and
    each update is one step of Adam [Kingma2015adam]_. All R networks are trained at
    once and independently. The paper only says that its network uses one data point per
    iteration; the sizes and the learning rate are ours.

    Args:
        num_inputs: The number of inputs d.
        hidden_sizes: The widths of the hidden layers.
        learning_rate: The learning rate of Adam.
        seed: The seed of the initial weights, which are normal with variance
            2 / fan-in; offsets are zero.
        num_replications: The number of networks R.
        dtype: The dtype of inputs and predictions.
        device: The device of inputs and predictions; torch's default if None.

    Example:
        >>> network = OnlineNeuralNetwork(1, num_replications=4)
        >>> inputs = torch.rand(4, 20, 1, dtype=torch.float64)
        >>> network.update(inputs, inputs.squeeze(-1).sin())
        >>> network.predict(inputs).shape
        torch.Size([4, 20])
    """

    def __init__(
        self,
        num_inputs: int,
        *,
        hidden_sizes: Sequence[int] = (32, 32),
        learning_rate: float = 1e-2,
        seed: int = 0,
        num_replications: int = 1,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.num_inputs = check_count("num_inputs", num_inputs)
        self.num_replications = check_count("num_replications", num_replications)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        sizes = [check_count("hidden_sizes", size) for size in hidden_sizes]
        sizes = [self.num_inputs, *sizes, 1]
        if device is None:
            device = torch.get_default_device()
        shapes = list(pairwise(sizes))
        counts = [fan_in * fan_out for fan_in, fan_out in shapes]
        generator = numbered_generator(check_seed(seed), 0)
        draws = torch.from_numpy(
            generator.standard_normal((self.num_replications, sum(counts)))
        ).to(dtype=dtype, device=device)
        self._weights = [
            (math.sqrt(2 / shape[0]) * part.unflatten(-1, shape)).requires_grad_()
            for shape, part in zip(shapes, draws.split(counts, dim=-1), strict=True)
        ]  # R x in x out
        self._offsets = [
            weight.new_zeros(len(weight), 1, weight.shape[-1]).requires_grad_()
            for weight in self._weights
        ]  # R x 1 x out
        self._parameters = [*self._weights, *self._offsets]
        self._means = [torch.zeros_like(p) for p in self._parameters]
        self._squares = [torch.zeros_like(p) for p in self._parameters]
        self.num_updates = 0

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the predictions of each network for its own inputs.

        Args:
            inputs: An ``R x m x d`` tensor.

        Returns:
            An ``R x m`` tensor: private.
        """
        with torch.no_grad():
            return self._forward(self._check_inputs(inputs))

    def update(self, inputs: Tensor, targets: Tensor) -> None:
        """Take one step on the mean squared error of some pairs.

        Args:
            inputs: An ``R x m x d`` tensor; m = 1 for one pair at a time.
            targets: An ``R x m`` tensor.
        """
        inputs = self._check_inputs(inputs)
        if not isinstance(targets, Tensor) or targets.shape != inputs.shape[:2]:
            raise InvalidArgumentError(
                f"targets must be a tensor of shape {tuple(inputs.shape[:2])}, one "
                f"number for each input, got {describe(targets)}."
            )
        with torch.enable_grad():
            errors = self._forward(inputs) - targets
            # The sum over networks gives each the gradient of its own loss.
            loss = errors.square().mean(dim=-1).sum()
            gradients = torch.autograd.grad(loss, self._parameters)
        self._step(gradients)

    def _step(self, gradients: Sequence[Tensor]) -> None:
        self.num_updates += 1
        corrections = [1 - beta**self.num_updates for beta in _BETAS]
        rate = self.learning_rate / corrections[0]
        with torch.no_grad():
            for parameter, mean, square, gradient in zip(
                self._parameters, self._means, self._squares, gradients, strict=True
            ):
                mean.lerp_(gradient, 1 - _BETAS[0])
                square.mul_(_BETAS[1])
                square.addcmul_(gradient, gradient, value=1 - _BETAS[1])
                scale = (square / corrections[1]).sqrt_().add_(_EPSILON)
                parameter.addcdiv_(mean, scale, value=-rate)

    def _forward(self, inputs: Tensor) -> Tensor:
        values = inputs
        for weight, offset in zip(self._weights[:-1], self._offsets[:-1], strict=True):
            values = torch.baddbmm(offset, values, weight).relu()
        return torch.baddbmm(self._offsets[-1], values, self._weights[-1]).squeeze(-1)

    def _check_inputs(self, inputs: Tensor) -> Tensor:
        if (
            not isinstance(inputs, Tensor)
            or inputs.dim() != 3
            or inputs.shape[0] != self.num_replications
            or inputs.shape[2] != self.num_inputs
        ):
            raise InvalidArgumentError(
                f"inputs must be a tensor of shape {self.num_replications} x m x "
                f"{self.num_inputs}, got {describe(inputs)}."
            )
        return inputs
