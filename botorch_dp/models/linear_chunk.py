"""The Bayesian linear models of a few agents: see botorch_dp.models.linear_models."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_dp.models.fourier import FourierFeatures

# Rounding of size u moves the eigenvalues of a matrix of trace c by about u c, and the
# noise is at least 8 times that.
_ROUNDING = 8 * torch.finfo(torch.float64).eps
# How many rows of a factor are stored together. With 10,000 factors at t = 70, assembly
# took 0.02 s, row by row 0.16 s; blocks took 218 MB, squares 392 MB.
BLOCK = 8


def _block_rows(size: int) -> list[tuple[slice, int]]:
    """Return the rows of each block of a factor of that size, and where they end."""
    ends = [min(start + BLOCK, size) for start in range(0, size, BLOCK)]
    return [(slice(BLOCK * i, end), end) for i, end in enumerate(ends)]


class LinearChunk:
    """The models of a few agents, c of them, in double precision.

    Args:
        features: The features that all agents share.
        size: The number of agents c.
        noise_variance: The variance of an observation.
        reuse: Whether to keep factors for later samples. The owner decides whether
            features are kept, too (``keep_features``).
    """

    def __init__(
        self,
        features: FourierFeatures,
        size: int,
        noise_variance: float,
        *,
        reuse: bool = True,
    ) -> None:
        self.features, self.reuse = features, reuse
        self.noise = noise_variance
        # Features have length sqrt(2 outputscale) at most, and t < M.
        trace = 2 * features.outputscale * features.num_features
        self.short_noise = max(noise_variance, _ROUNDING * trace)
        like = features.frequencies
        self.counts = torch.zeros(size, dtype=torch.int64, device=like.device)
        # The first T observations of each agent, T < M; zero where there is none.
        self.inputs = like.new_zeros(size, 0, features.dim)
        self.values = like.new_zeros(size, 0)
        # The lower triangles of the factors: block i is c x 8 x 8 (i + 1). The first
        # `known` of their rows are up to date.
        self.blocks: list[Tensor] = []
        self.known = 0
        # The features of observations, of which the first `num_kept` are up to date.
        self.keep_features = False
        self._kept = like.new_empty(size, 0, features.num_features)
        self.num_kept = 0
        # Phi^T Phi and Phi^T y, once an agent has M observations.
        self.gram: Tensor | None = None
        self.moments: Tensor | None = None

    def append(self, X: Tensor, y: Tensor, where: Tensor) -> None:
        """Add ``c x k`` observations of the agents given by ``where``."""
        most = self.features.num_features - 1
        after = self.counts + X.shape[1] * where
        if self.gram is None and int(after.max()) > most:
            phi = self._short_features()
            self.gram = phi.mT @ phi
            self.moments = (phi.mT @ self.values.unsqueeze(-1)).squeeze(-1)
        if self.gram is not None and self.moments is not None:
            phi = self.features(X)
            phi = torch.where(where[:, None, None], phi, torch.zeros_like(phi))
            y_seen = torch.where(where[:, None], y, torch.zeros_like(y))
            self.gram += phi.mT @ phi
            self.moments += (phi.mT @ y_seen.unsqueeze(-1)).squeeze(-1)
        if int(after.min()) > most:
            self._forget_short()
        else:
            self._append_short(X, y, where, min(int(after.max()), most))
        self.counts = after

    def _append_short(self, X: Tensor, y: Tensor, where: Tensor, size: int) -> None:
        """Add each agent's observations after its last one, up to ``size`` in total."""
        if not self.inputs.shape[1] and bool(where.all()):
            self.inputs, self.values = X[:, :size].clone(), y[:, :size].clone()
            return
        steps = torch.arange(X.shape[1], device=X.device)
        columns = self.counts.unsqueeze(-1) + steps  # c x k
        agents, kept = ((columns < size) & where.unsqueeze(-1)).nonzero(as_tuple=True)
        if not len(agents):
            return
        columns = columns[agents, kept]
        more = size - self.inputs.shape[1]
        self.inputs = pad(self.inputs, (0, 0, 0, more))
        self.values = pad(self.values, (0, more))
        self.inputs[agents, columns] = X[agents, kept]
        self.values[agents, columns] = y[agents, kept]
        first = int(columns.min())
        self.known, self.num_kept = min(self.known, first), min(self.num_kept, first)

    def _forget_short(self) -> None:
        self.inputs = self.inputs[:, :0].clone()
        self.values = self.values[:, :0].clone()
        self.blocks, self.known = [], 0
        self._kept, self.num_kept = self._kept[:, :0].clone(), 0

    @property
    def num_blocks(self) -> int:
        """The number of blocks of the factors, which the owner must allocate."""
        return math.ceil(self.inputs.shape[1] / BLOCK)

    def mean(self) -> Tensor:
        """Return the ``c x M`` posterior means."""
        short = long = None
        if self.any_short:
            phi = self._short_features()
            short = self._pull_back(phi, self._factor(phi), self.values)
        if self.gram is not None:
            long = self._long_weights()
        return self._choose(short, long)

    def sample(self, normals: Tensor) -> Tensor:
        """Return ``c x M`` samples from ``c x 2M`` normal numbers."""
        prior, noise = normals.split(self.features.num_features, dim=-1)
        short = long = None
        if self.any_short:
            # Matheron: w = w0 + Phi^T (Phi Phi^T + s^2 I)^-1 (y - Phi w0 - e0). Rows
            # without an observation have zero features and no effect.
            phi = self._short_features()
            size = phi.shape[1]
            residuals = self.values - (phi * prior.unsqueeze(1)).sum(dim=-1)
            residuals = residuals - math.sqrt(self.short_noise) * noise[:, :size]
            short = prior + self._pull_back(phi, self._factor(phi), residuals)
        if self.gram is not None:
            long = self._long_weights(prior)
        return self._choose(short, long)

    @property
    def any_short(self) -> bool:
        """Whether an agent has fewer than M observations."""
        return bool((self.counts < self.features.num_features).any())

    def _choose(self, short: Tensor | None, long: Tensor | None) -> Tensor:
        """Select, for each agent, the result for its number of observations."""
        if long is None:
            assert short is not None
            return short
        if short is None:
            return long
        is_short = self.counts < self.features.num_features
        return torch.where(is_short.unsqueeze(-1), short, long)

    def _short_features(self) -> Tensor:
        """Return ``c x T x M`` features, zero where there is no observation."""
        size = self.inputs.shape[1]
        if not self.keep_features:
            self._kept, self.num_kept = self._kept[:, :0].clone(), 0
        known = self.num_kept
        if known < size or not size:
            phi = self.features(self.inputs[:, known:])
            steps = torch.arange(known, size, device=phi.device)
            missing = steps >= self.counts.unsqueeze(-1)
            if missing.any():
                phi.masked_fill_(missing.unsqueeze(-1), 0.0)
            if not self.keep_features:
                return phi
            if size > self._kept.shape[1]:
                more = math.ceil(size / BLOCK) * BLOCK - self._kept.shape[1]
                self._kept = pad(self._kept, (0, 0, 0, more))
            self._kept[:, known:size] = phi
            self.num_kept = size
        return self._kept[:, :size]

    def _factor(self, phi: Tensor) -> Tensor:
        r"""Return factors of :math:`\Phi \Phi^T + s^2 I`, ``c x T x T``, up to date."""
        agents, size, _ = phi.shape
        known = self.known
        if not known:
            square = phi @ phi.mT
            square.diagonal(dim1=-2, dim2=-1).add_(self.short_noise)
            factor, _ = torch.linalg.cholesky_ex(square)
            if self.reuse:
                factor = factor.contiguous()  # as later, to sample the same bits
                self._keep(factor)
            return factor
        factor = phi.new_zeros(agents, size, size)
        for block, (rows, end) in zip(self.blocks, _block_rows(known), strict=False):
            factor[:, rows, :end] = block[:, : end - rows.start, :end]
        if known == size:
            return factor
        new = phi[:, known:]
        cross = torch.linalg.solve_triangular(
            factor[:, :known, :known], phi[:, :known] @ new.mT, upper=False
        ).mT  # c x (T - known) x known
        square = new @ new.mT - cross @ cross.mT
        square.diagonal(dim1=-2, dim2=-1).add_(self.short_noise)
        factor[:, known:, :known] = cross
        # cholesky would raise, depending on private values.
        factor[:, known:, known:], _ = torch.linalg.cholesky_ex(square)
        self._keep(factor)
        return factor

    def _keep(self, factor: Tensor) -> None:
        for i, (rows, end) in enumerate(_block_rows(factor.shape[-1])):
            if end > self.known:
                self.blocks[i][:, : end - rows.start, :end] = factor[:, rows, :end]
        self.known = factor.shape[-1]

    @staticmethod
    def _pull_back(phi: Tensor, factor: Tensor, residuals: Tensor) -> Tensor:
        r"""Return :math:`\Phi^T (\Phi \Phi^T + s^2 I)^{-1} r`."""
        half = torch.linalg.solve_triangular(
            factor, residuals.unsqueeze(-1), upper=False
        )
        whole = torch.linalg.solve_triangular(factor.mT, half, upper=True)
        # A row times Phi takes a fifth of the time of Phi^T times a column.
        return (whole.mT @ phi).squeeze(1)

    def _long_weights(self, normals: Tensor | None = None) -> Tensor:
        r"""Return means, or samples :math:`L^{-T} (L^{-1} \Phi^T y + s z)`."""
        assert self.gram is not None
        assert self.moments is not None
        noise = _ROUNDING * self.gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        noise = noise.clamp(min=self.noise).unsqueeze(-1)  # c x 1
        precision = self.gram.clone()
        precision.diagonal(dim1=-2, dim2=-1).add_(noise)
        factor, _ = torch.linalg.cholesky_ex(precision)
        half = torch.linalg.solve_triangular(
            factor, self.moments.unsqueeze(-1), upper=False
        )
        if normals is not None:
            half = half + (noise.sqrt() * normals).unsqueeze(-1)
        whole = torch.linalg.solve_triangular(factor.mT, half, upper=True)
        return whole.squeeze(-1)

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the factors."""
        return {
            "counts": self.counts.clone(),
            "inputs": self.inputs.clone(),
            "values": self.values.clone(),
            "gram": None if self.gram is None else self.gram.clone(),
            "moments": None if self.moments is None else self.moments.clone(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.blocks, self.known, self.num_kept = [], 0, 0
        for name in ("counts", "inputs", "values", "gram", "moments"):
            value = state_dict[name]
            if isinstance(value, Tensor):
                value = value.to(device=self.counts.device, copy=True)
            setattr(self, name, value)
