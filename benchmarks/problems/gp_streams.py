r"""Hyperparameters of a Gaussian process on a stream: Example 5.2 of [LDPBO2025]_.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
    .. [Friedman1991mars] J. H. Friedman. Multivariate Adaptive Regression Splines. The
        Annals of Statistics, 1991.
"""

import math
from abc import abstractmethod
from typing import Unpack

import torch
from torch import Tensor

from botorch_dp._validation import check_count, check_nonnegative, check_positive
from botorch_dp.problems.streams import (
    Record,
    StreamProblem,
    StreamSettings,
    check_seed,
    chunk_normals,
)

_LOG_2PI = math.log(2 * math.pi)


class GPStream(StreamProblem):
    r"""Learn kernel hyperparameters from users who each have a short series.

    User t draws m + 1 inputs uniformly from :math:`[-1, 1]^d` and observes
    :math:`y = f(x) + e` at the first m of them; the last one is for testing. The
    user's loss is the negative log marginal likelihood of its series per pair,

    .. math:: \ell_t(\theta) = \frac1m \Bigl(\tfrac12 y^\top K_y^{-1} y
        + \tfrac12 \log |K_y| + \tfrac m2 \log 2\pi\Bigr), \qquad
        K_y = K_\theta + \sigma^2 I,

    with :math:`K_\theta(x, x') = s^2 \exp(-\tfrac12 \sum_j (x_j - x_j')^2 / l_j^2)` and
    mean zero. Parameters are logarithms: of l, and of s where it is not fixed to 1.

    **Why a series.** In the paper every user has one pair. The marginal likelihood of
    one pair is that of :math:`y \sim N(0, s^2 + \sigma^2)`, which does not depend on
    the length scales: all their gradients are zero, and nothing can be learned.
    Therefore users have m = 20 pairs here.

    **The noise.** The paper fixes :math:`\sigma^2 = 10^{-4}`, but the noise of its data
    has variance 0.01. The default here is the true value, 0.01. With a value a hundred
    times too small, the model fits the noise: on the sine wave its likelihood is
    largest at a length scale of 0.005, where it predicts nothing.

    Gradients have no bound, so clip them (at B = 2 in the paper). If a kernel matrix
    cannot be factorized, which only extreme hyperparameters or a tiny
    ``noise_variance`` cause, the loss is NaN. It does not raise, because whether it
    happens depends on the user's private inputs.

    Args:
        num_inputs: The number of inputs d of the function.
        learn_scale: Whether s is a parameter, after the length scales.
        series_length: The number m of pairs of a user.
        noise_variance: The model's :math:`\sigma^2`.
        data_noise_std: The standard deviation of e.
        seed: The seed of the records.
        **settings: ``num_replications``, ``num_steps``, ``dtype`` and ``device`` of
            :class:`~botorch_dp.problems.StreamProblem`. Computations are in double
            precision.
    """

    # Smaller than in other streams, because a record is larger.
    chunk_size = 128

    def __init__(
        self,
        num_inputs: int,
        *,
        learn_scale: bool,
        series_length: int,
        noise_variance: float,
        data_noise_std: float,
        seed: int = 0,
        **settings: Unpack[StreamSettings],
    ) -> None:
        super().__init__(num_inputs + learn_scale, **settings)
        self.num_inputs = num_inputs
        self.learn_scale = learn_scale
        self.series_length = check_count("series_length", series_length)
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.data_noise_std = check_nonnegative("data_noise_std", data_noise_std)
        self.seed = check_seed(seed)

    @abstractmethod
    def function(self, inputs: Tensor) -> Tensor:
        """Return the true function f.

        Args:
            inputs: A ``... x d`` tensor.

        Returns:
            A ``...`` tensor.
        """

    def pairs(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the raw series of a step's users, for baselines without privacy.

        Args:
            step: The step, from 1.

        Returns:
            Inputs, ``R x m x d``, and noisy values, ``R x m``: private.
        """
        inputs, values, _, _ = self._record(step)
        return inputs[:, :-1].to(self.dtype), values.to(self.dtype)

    def test_pair(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the test input of a step's users and the function's value there.

        Args:
            step: The step, from 1.

        Returns:
            Inputs, ``R x d``, and values without noise, ``R``: private, for measuring.
        """
        inputs, _, truth, _ = self._record(step)
        return inputs[:, -1].to(self.dtype), truth.to(self.dtype)

    def predict(self, step: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the test pair on the user's own device, given its series.

        Args:
            step: The step, from 1.
            x: An ``R x p`` tensor of public hyperparameters.

        Returns:
            The posterior mean at the test input and the true value of the function,
            ``R`` tensors: private, for measuring.
        """
        _, values, truth, squares = self._record(step)
        kernel = self._kernel(squares, self._check_point(x).unsqueeze(1))  # R x 1 x ...
        gram, cross = kernel[:, 0, :-1, :-1], kernel[:, 0, -1, :-1]
        factor = self._factor(gram)
        weights = torch.cholesky_solve(values.unsqueeze(-1), factor).squeeze(-1)
        predicted = (cross * weights).sum(dim=-1)
        return predicted.to(self.dtype), truth.to(self.dtype)

    def _chunk(self, number: int) -> Record:
        size, d = self.series_length + 1, self.num_inputs
        draws = chunk_normals(
            self.seed,
            number,
            num_replications=self.num_replications,
            num_steps=self.chunk_size,
            size=size * (d + 1),
        ).unflatten(-1, (size, d + 1))
        inputs = 2 * torch.special.ndtr(draws[..., :-1]) - 1  # C x R x (m + 1) x d
        truth = self.function(inputs)
        values = truth + self.data_noise_std * draws[..., -1]
        parts = (inputs, values[..., :-1], truth[..., -1])
        # Always in double precision, because kernel matrices are ill-conditioned.
        inputs, values, test = (part.contiguous().to(self.device) for part in parts)
        return inputs, values, test

    def _record(self, step: int) -> Record:
        """Return inputs, noisy values, the test value, and squared differences.

        The ``R x d x (m + 1)^2`` differences are large, so they are for one step only.
        """
        inputs, values, test = super()._record(step)
        columns = inputs.mT  # R x d x (m + 1)
        squares = (columns.unsqueeze(-1) - columns.unsqueeze(-2)).square()
        return inputs, values, test, squares

    def _kernel(self, squares: Tensor, X: Tensor) -> Tensor:
        """Return ``R x M x n x n`` kernel matrices from ``R x d x n x n`` squares."""
        X = X.double()
        rates = (-2 * X[..., : self.num_inputs]).exp() / -2  # R x M x d
        exponents = torch.bmm(rates, squares.flatten(-2))  # R x M x n^2
        if self.learn_scale:
            exponents = exponents + 2 * X[..., -1:]
        return exponents.exp().unflatten(-1, squares.shape[-2:])

    def _factor(self, gram: Tensor) -> Tensor:
        """Return Cholesky factors of K + sigma^2 I, or NaN if there are none."""
        noise = self.noise_variance * torch.eye(
            gram.shape[-1], dtype=gram.dtype, device=gram.device
        )
        factor, info = torch.linalg.cholesky_ex(gram + noise)
        return factor.masked_fill((info > 0)[..., None, None], torch.nan)

    def _losses(self, record: Record, X: Tensor) -> Tensor:
        _, values, _, squares = record
        factor = self._factor(self._kernel(squares[..., :-1, :-1], X))
        columns = values[:, None, :, None].expand(*factor.shape[:-1], 1)
        white = torch.linalg.solve_triangular(factor, columns, upper=False)
        halves = white.squeeze(-1).square() / 2  # R x M x m
        diagonal = factor.diagonal(dim1=-2, dim2=-1).log()
        losses = (halves + diagonal).mean(dim=-1) + _LOG_2PI / 2
        return losses.to(self.dtype)

    def _gradients(self, record: Record, x: Tensor) -> Tensor:
        _, values, _, squares = record
        squares = squares[..., :-1, :-1]
        gram = self._kernel(squares, x.unsqueeze(1)).squeeze(1)  # R x m x m
        factor = self._factor(gram)
        inverse = torch.cholesky_inverse(factor)
        weights = torch.bmm(inverse, values.unsqueeze(-1))
        # tr((K_y^-1 - a a^T) dK) / 2 with dK = K times squares / l^2, or times 2.
        inner = (inverse - torch.bmm(weights, weights.mT)) * gram / self.series_length
        x = x.double()
        sums = torch.bmm(squares.flatten(-2), inner.flatten(-2).unsqueeze(-1))
        gradients = sums.squeeze(-1) * (-2 * x[:, : self.num_inputs]).exp() / 2
        if self.learn_scale:
            by_scale = inner.sum(dim=(-2, -1)).unsqueeze(-1)
            gradients = torch.cat([gradients, by_scale], dim=-1)
        return gradients.to(self.dtype)


class SineStream(GPStream):
    r"""One sine wave: :math:`f(x) = \sin(2 \pi x)`, parameters (log l, log s).

    See :class:`GPStream` for users and losses. The paper sets T = 10,000.

    **Difficulty**: at the start, zero, the mean loss is 12.9, the mean squared error of
    :meth:`predict` is 0.40 (the function's variance is 0.5) and the median norm of a
    gradient is 11. The smallest loss, 0.04, is near (-1.37, -0.16), where the error is
    0.014.

    Args:
        series_length: The number m of pairs of a user.
        noise_variance: The model's :math:`\sigma^2`; 1e-4 in the paper.
        data_noise_std: The standard deviation of the data's noise.
        seed: The seed of the records.
        **settings: ``num_replications``, ``num_steps``, ``dtype`` and ``device`` of
            :class:`~botorch_dp.problems.StreamProblem`. Computations are in double
            precision.

    Example:
        >>> stream = SineStream(num_replications=4)
        >>> stream.losses(1, torch.zeros(3, 2, dtype=torch.float64)).shape
        torch.Size([4, 3])
        >>> hyperparameters = torch.tensor([[-1.1, 0.2]], dtype=torch.float64)
        >>> predicted, true = stream.predict(1, hyperparameters.expand(4, 2))
        >>> predicted.shape, true.shape
        (torch.Size([4]), torch.Size([4]))
    """

    def __init__(
        self,
        *,
        series_length: int = 20,
        noise_variance: float = 1e-2,
        data_noise_std: float = 0.1,
        seed: int = 0,
        **settings: Unpack[StreamSettings],
    ) -> None:
        super().__init__(
            1,
            learn_scale=True,
            series_length=series_length,
            noise_variance=noise_variance,
            data_noise_std=data_noise_std,
            seed=seed,
            **settings,
        )

    def function(self, inputs: Tensor) -> Tensor:
        """Return the sine of two pi x."""
        return (2 * math.pi * inputs[..., 0]).sin()


class FriedmanStream(GPStream):
    r"""A function of [Friedman1991mars]_, simplified: five length scales, s = 1.

    .. math:: f(x) = \sin(\pi x_1 x_2) + (x_3 - \tfrac12)^2 + x_4 + x_5.

    See :class:`GPStream` for users and losses. The paper sets T = 10,000.

    **Difficulty**: twenty points in five dimensions have little information. At the
    start, zero, the mean loss is 1.360 and the mean squared error of :meth:`predict` is
    0.49. The smallest loss, 1.332, is near (-0.09, -0.08, -0.05, 0.28, 0.27), where the
    error is 0.41.

    Args:
        series_length: The number m of pairs of a user.
        noise_variance: The model's :math:`\sigma^2`; 1e-4 in the paper.
        data_noise_std: The standard deviation of the data's noise.
        seed: The seed of the records.
        **settings: ``num_replications``, ``num_steps``, ``dtype`` and ``device`` of
            :class:`~botorch_dp.problems.StreamProblem`. Computations are in double
            precision.

    Example:
        >>> stream = FriedmanStream()
        >>> stream.dim, stream.pairs(1)[0].shape
        (5, torch.Size([1, 20, 5]))
    """

    def __init__(
        self,
        *,
        series_length: int = 20,
        noise_variance: float = 1e-2,
        data_noise_std: float = 0.1,
        seed: int = 0,
        **settings: Unpack[StreamSettings],
    ) -> None:
        super().__init__(
            5,
            learn_scale=False,
            series_length=series_length,
            noise_variance=noise_variance,
            data_noise_std=data_noise_std,
            seed=seed,
            **settings,
        )

    def function(self, inputs: Tensor) -> Tensor:
        """Return the value of f."""
        x1, x2, x3, x4, x5 = inputs.unbind(-1)
        return (math.pi * x1 * x2).sin() + (x3 - 0.5).square() + x4 + x5
