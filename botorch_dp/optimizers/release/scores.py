r"""Scores of candidates from bounded losses, whose sensitivity is known exactly.

Losses lie in a public range of width R (they are clipped to it), and the points D where
they are known do not depend on private data. Losses are counted from the lower end of
the range, and all sums are in double precision: far from zero, rounding would exceed
R/n. There are three ways to score candidates, each with a bound on how much a score
changes if one of n records is replaced:

* ``"evaluated"``: the mean loss at the points of D themselves: R/n.
* ``"per-record"``: a Gaussian process smooths the losses of each record (a public
  linear map w), the predictions are clipped to the range and then averaged: R/n,
  whatever w is. It costs n predictions for each candidate.
* ``"linear"``: the smoothed mean loss: :math:`\|w\|_1 R/n`, at the worst candidate.

The weights w are public. They are computed in double precision, whatever the dtype of
the candidates, and no row that is applied to private losses has a larger norm than the
sensitivity assumes: solving for one candidate rounds differently from solving for many,
and an ill-conditioned kernel matrix magnifies that.

Smoothing can choose a candidate that was never evaluated, at the price of a choice
among more candidates. All scores are minus the estimated loss: higher is better.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_dp.models.dictionary import KernelDictionary
from botorch_dp.models.kernels.derivatives import kernel_value
from botorch_dp.privacy.budget import mean_sensitivity

METHODS = ("evaluated", "per-record", "linear")

# The weights of all candidates are kept if they are not more numbers than this: 64 MB.
_KEPT = 2**23
# How many weights are computed at a time, and at how many candidates and records
# predictions are made at a time. The blocks, of 1 and 2 MB, stay in the cache: the
# products take half the time of those with blocks of 64 MB.
_BLOCK, _ROWS, _RECORDS = 2**17, 256, 1024
# The number of multiplications that scoring record by record may take: a minute or so.
_AFFORDABLE = 5e11
# How many draws estimate the error of a choice, and at how many candidates.
_DRAWS, _CANDIDATES_OF_DRAWS = 256, 500


class StableScores:
    """Scores of all candidates from clipped losses at some points.

    Args:
        kernel: The covariance function of the smoother, hyperparameters fixed.
        candidates: An ``N x d`` tensor.
        evaluated: The indices of the points D among them.
        num_records: The number n of records.
        width: The width R of the range: losses lie between 0 and R.
        noise_variance: The noise variance of the smoother.
    """

    def __init__(
        self,
        kernel: Kernel,
        candidates: Tensor,
        evaluated: list[int],
        *,
        num_records: int,
        width: float,
        noise_variance: float,
    ) -> None:
        self._candidates, self._evaluated = candidates.double(), evaluated
        self._n, self._width, self._middle = num_records, width, width / 2
        self._dictionary = KernelDictionary(
            kernel, self._candidates[evaluated], noise_variance=noise_variance
        )
        self._kept: list[Tensor] = []  # the weights of the first candidates

    @property
    def record_sensitivity(self) -> float:
        """How much one record changes a mean of losses at most: R/n."""
        return mean_sensitivity(self._width, self._n)

    def choose_method(self, epsilon: float, prior_std: float) -> str:
        """Choose the way to score with the smallest error, from public numbers alone.

        Scoring record by record is left out if it would take more than about a minute,
        and linear scores if they are more sensitive.

        Args:
            epsilon: The epsilon of the choice.
            prior_std: The standard deviation of the mean loss, in units of the loss.
        """
        methods, work = ["evaluated"], self._n * len(self._candidates)
        # Linear scores are less sensitive if all norms of weights are below 1. Mostly
        # the first chunk of candidates has a larger norm and decides.
        norms = (weights.abs().sum(dim=-1).max() for weights in self._weights())
        if work * len(self._evaluated) <= _AFFORDABLE:
            methods.append("per-record")
            if all(norm < 1.0 for norm in norms):
                methods.append("linear")
        else:
            methods.append("linear")
        return min(methods, key=lambda name: self.error(name, epsilon, prior_std))

    def error(self, method: str, epsilon: float, prior_std: float) -> float:
        """Return how much worse the choice is expected to be than the best candidate.

        This is a public number: the mean regret of choices with the noise of this
        method, if the mean loss were a draw of the Gaussian process.

        Args:
            method: One of ``METHODS``.
            epsilon: The epsilon of the choice.
            prior_std: The standard deviation of the mean loss, in units of the loss.
        """
        draws, noise = self._draws
        known = draws[: len(self._evaluated)]
        scores = known
        if method != "evaluated":
            scores = self._weights_of(self._candidates[self._drawn]) @ known
        scale = 2 * self.sensitivity(method) / (epsilon * prior_std)
        noisy = scores + scale * noise[: len(scores)]
        found = draws.gather(0, noisy.argmax(dim=0, keepdim=True))
        return prior_std * float((draws.amax(dim=0) - found).mean())

    def sensitivity(self, method: str) -> float:
        """Return how much one record changes the score of any candidate at most."""
        if method != "linear":
            return self.record_sensitivity
        norm, T = self._largest_norm, len(self._evaluated)
        # A score is a sum of T terms, each at most R/2 times its weight, plus R/2. The
        # rounding of two such sums differs by no more than this.
        rounding = (T + 4) * 2.0**-52 * (1 + norm) * self._width
        return norm * self.record_sensitivity + rounding

    def candidates(self, method: str) -> Tensor:
        """Return the indices of the candidates that are scored."""
        device = self._candidates.device
        if method == "evaluated":
            return torch.tensor(self._evaluated, device=device)
        return torch.arange(len(self._candidates), device=device)

    def private_scores(self, method: str, private_losses: Tensor) -> Iterator[Tensor]:
        """Yield the scores of consecutive candidates.

        Args:
            method: One of ``METHODS``.
            private_losses: An ``n x T`` tensor of doubles between 0 and R.
        """
        if method == "evaluated":
            yield -private_losses.mean(dim=0)
            return
        centred = private_losses - self._middle
        mean = centred.mean(dim=0)
        for weights in self._weights():  # chunk x T
            if method == "linear":
                yield -(self._bounded(weights) @ mean + self._middle)
            else:
                yield -self._smooth_records(centred, weights)

    def value_sensitivity(self, method: str) -> float:
        """Return how much one record changes the estimate of any loss at most."""
        return max(self.record_sensitivity, self.sensitivity(method))

    def private_value(self, method: str, private_losses: Tensor, index: int) -> Tensor:
        """Return the estimated loss of one candidate, above the range's lower end."""
        if index in self._evaluated:
            return private_losses[:, self._evaluated.index(index)].mean()
        centred = private_losses - self._middle
        weights = self._weights_of(self._candidates[index].unsqueeze(0))
        if method == "linear":
            mean = centred.mean(dim=0)
            return (self._bounded(weights) @ mean).squeeze(0) + self._middle
        return self._smooth_records(centred, weights).squeeze(0)

    @cached_property
    def _drawn(self) -> list[int]:
        """The candidates at which draws are made: first the evaluated ones."""
        step = max(1, len(self._candidates) // _CANDIDATES_OF_DRAWS)
        others = set(range(0, len(self._candidates), step)) - set(self._evaluated)
        return [*self._evaluated, *sorted(others)]

    @cached_property
    def _draws(self) -> tuple[Tensor, Tensor]:
        """Seeded draws of the process, and exponential noise for each candidate.

        A candidate that was not evaluated stands for several, with the largest noise of
        all of them.
        """
        T, count = len(self._evaluated), len(self._drawn)
        points = self._candidates[self._drawn]
        with torch.no_grad():
            covariance = kernel_value(self._dictionary.kernel, points, points)
            root = psd_safe_cholesky(covariance)
        generator = torch.Generator("cpu").manual_seed(0)
        on_cpu: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        normal = torch.randn(count, _DRAWS, generator=generator, **on_cpu)
        uniform = torch.rand(count, _DRAWS, generator=generator, **on_cpu)
        if count > T:
            uniform[T:] **= (count - T) / (len(self._candidates) - T)
        noise = -torch.log1p(-uniform)
        return root @ normal.to(root), noise.to(root)

    def _smooth_records(self, centred: Tensor, weights: Tensor) -> Tensor:
        """Return the mean over records of the clipped predictions, for each row."""
        total = weights.new_zeros(len(weights))
        # Predictions count from the middle of the range, where losses do.
        low, high = -self._middle, self._width - self._middle
        parts = zip(weights.split(_ROWS), total.split(_ROWS), strict=True)
        for rows, sums in parts:
            for block in centred.split(_RECORDS):
                predicted = (rows @ block.mT).clamp_(low, high)
                sums += predicted.sum(dim=-1)
        return total / self._n + self._middle

    @cached_property
    def _largest_norm(self) -> float:
        """The largest L1 norm of the weights of any candidate, public."""
        return max(float(w.abs().sum(dim=-1).max()) for w in self._weights())

    def _bounded(self, weights: Tensor) -> Tensor:
        """Return the weights, none with a larger norm than the sensitivity allows."""
        norms = weights.abs().sum(dim=-1, keepdim=True)
        return weights * (self._largest_norm / norms).clamp(max=1.0)

    def _weights(self) -> Iterator[Tensor]:
        """Yield the weights of consecutive candidates, and compute them once if few."""
        size = max(_ROWS, _BLOCK // max(1, len(self._evaluated)))
        keep = len(self._candidates) * len(self._evaluated) <= _KEPT
        for i, chunk in enumerate(self._candidates.split(size)):
            if i < len(self._kept):
                yield self._kept[i]
                continue
            weights = self._weights_of(chunk)
            if keep:
                self._kept.append(weights)
            yield weights

    @torch.no_grad()
    def _weights_of(self, points: Tensor) -> Tensor:
        kernel = self._dictionary.kernel
        cross = kernel_value(kernel, self._dictionary.points, points)  # T x N
        return self._dictionary.solve(cross.contiguous()).mT
