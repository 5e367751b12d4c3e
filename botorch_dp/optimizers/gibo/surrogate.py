r"""The surrogate of a run with a radial kernel: one factor from step to step.

With D the points near the current :math:`\theta`, :math:`K = k(D, D) + s^2 I = L L^T`
and :math:`C = \nabla k(\theta, D)`, half of the work is
:math:`H = L^{-1} C^T`. It gives the covariance of the gradient,
:math:`\nabla \nabla^T k(\theta, \theta) - H^T H`, and the weights,
:math:`W^T = L^{-T} H`. New points append rows to L and to H, so the factor that chose
them also weighs their losses, and serves the next step as far as its points stay.

Everything here depends on public points and a fixed kernel; no loss enters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_dp.acquisition._covariances import WhitenedPoints
from botorch_dp.acquisition._refinement import is_history
from botorch_dp.acquisition._trace import Geometry
from botorch_dp.acquisition.design import leading_directions
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.cholesky import GrowingFactor
from botorch_dp.models.dictionary import ROUNDING
from botorch_dp.models.kernels.radial import RadialKernel


@dataclass(frozen=True)
class Placement:
    """New points, and what they would add to the surrogate.

    Attributes:
        points: A ``b x d`` tensor.
        whitened: Their distances from theta in length scales, ``b x d``.
        half: Their ``M x b`` part of the factor, for the old points.
        triangle: Their ``b x b`` part of the factor.
        rows: Their ``b x (d + 1)`` rows of H; the last column is for constants.
        trace: The trace of the gradient's covariance after observing them, if the prior
            mean is zero.
    """

    points: Tensor
    whitened: Tensor
    half: Tensor
    triangle: Tensor
    rows: Tensor
    trace: float


class RadialSurrogate:
    """Public points, their factor, and the gradient at one point.

    Args:
        radial: The kernel. Its hyperparameters give dtype and device.
        constant_mean: Whether the prior mean is an unknown constant instead of zero.
    """

    def __init__(self, radial: RadialKernel, *, constant_mean: bool) -> None:
        self.radial, self._constant_mean = radial, constant_mean
        self._inverse = radial.inverse_lengthscale.contiguous()
        self._scale = float(radial.outputscale)
        slope = radial.unit_profile(self._inverse.new_zeros(()))[1]
        self._slopes = self._scale * self._inverse
        prior = slope * self._slopes * self._inverse
        self._prior, self._prior_trace = torch.diag(prior), float(prior.sum())
        self._rounding = self._noise_variance = math.nan
        self._of_prior: Tensor | None = None
        self.forget()

    def forget(self) -> None:
        """Drop all points."""
        self._keys: list[int] = []
        self._points = self._inverse.new_empty(0, len(self._inverse))
        self._whitened: Tensor = self._points
        self._rows: Tensor = self._points.new_empty(0, len(self._inverse) + 1)
        self._factor = GrowingFactor(self._inverse)

    def look(
        self,
        theta: Tensor,
        keys: Sequence[int],
        points: Tensor,
        noise_variance: float,
    ) -> None:
        """Use some points for the gradient at theta.

        Args:
            theta: The current point, a ``d`` tensor.
            keys: Which of the points to use.
            points: All points so far, ``N x d``.
            noise_variance: The variance of the observations' noise.
        """
        same_noise = noise_variance == self._noise_variance
        self._theta, self._noise_variance = theta, noise_variance
        # The factor of the first points is the beginning of the factor. To delete other
        # points from it costs more than to factorize anew: measured, one deletion of
        # 136 points takes 0.26 ms and a new factor 0.17; of 2040, 79 and 108 ms.
        wanted, kept = set(keys), 0
        if same_noise:
            while kept < len(self._keys) and self._keys[kept] in wanted:
                kept += 1
        if 2 * kept < len(keys):  # one large step is then faster than two
            kept = 0
        if not kept:
            self._rounding = ROUNDING * torch.finfo(self._inverse.dtype).eps
        self._keys = self._keys[:kept]
        self._points = self._points[:kept]
        self._factor.truncate(kept)
        self._prepare()
        present = set(self._keys)
        new = [key for key in keys if key not in present]
        if new:
            self.add(self.place(points[new].unsqueeze(0)), new)

    @property
    def unit_noise(self) -> float:
        """The variance of the observations' noise over the output scale."""
        return self._noise_variance / self._scale

    def directions(self) -> Tensor:
        """Return the directions of the gradient, the least known first, ``d x d``."""
        if self._keys:
            H = self._rows[:, :-1]
            covariance = torch.addmm(self._prior, H.mT, H, alpha=-1)
            return leading_directions(covariance, self.radial)
        if self._of_prior is None:
            self._of_prior = leading_directions(self._prior, self.radial)
        return self._of_prior

    def place(self, choices: Tensor) -> Placement:
        """Return which new points leave the smallest trace, and what they would add.

        Args:
            choices: A ``k x b x d`` tensor: k choices of b points.
        """
        while (placed := self._try(choices)) is None:
            self._rounding *= 10.0
            if self._rounding > 0.1:
                raise InvalidArgumentError(
                    "kernel must be finite and positive semidefinite on the points; "
                    f"its matrix is not: {self.radial!r}."
                )
            # With more noise on all points, which takes a new factor.
            keys, old = self._keys, self._points
            self.forget()
            self._prepare()
            if keys:
                self.add(self.place(old.unsqueeze(0)), keys)
        return placed

    def geometry(self) -> Geometry:
        """Return what the trace after new points needs, for a zero mean."""
        n, dim = self._points.shape
        root = torch.eye(n + dim, dtype=self._points.dtype, device=self._points.device)
        root[:n, :n] = self._factor.dense() / math.sqrt(self._scale)
        H = self._rows[:, :-1] / (self._inverse * math.sqrt(self._scale))
        root[n:, :n] = H.mT
        theta = self._theta.unsqueeze(0)
        noise = max(self._noise_variance, self._least_noise(n) * self._scale)
        return Geometry(
            known=WhitenedPoints(self.radial, self._points, theta),
            root=root,
            noise=self._inverse.new_tensor(noise / self._scale),
            weights=self._inverse.square() * self._scale,
            trace=self._inverse.new_tensor(self._trace),
            scale=self._inverse,
        )

    @property
    def has_history(self) -> bool:
        """Whether any point is near enough to tell anything about the gradient."""
        return is_history(self._whitened, self.radial)

    def add(self, placed: Placement, keys: Sequence[int]) -> None:
        """Take new points over, under their keys.

        Args:
            placed: What :meth:`place` returned last.
            keys: One number for each of them.
        """
        self._factor.append(placed.half, placed.triangle)
        self._points = torch.cat([self._points, placed.points])
        self._whitened = torch.cat([self._whitened, placed.whitened])
        self._rows = torch.cat([self._rows, placed.rows])
        self._trace = placed.trace
        # Last: if this is interrupted, the next look() cuts off what has no key.
        self._keys = [*self._keys, *keys]

    def trace_with(self, placed: Placement) -> float:
        """Return the trace that new points would leave, with the mean as it is."""
        return placed.trace + self._trace_of_mean(torch.cat([self._rows, placed.rows]))

    @property
    def trace(self) -> float:
        """The trace of the gradient's covariance, given the points so far."""
        if self._constant_mean and not self._keys:
            return math.inf
        return self._trace + self._trace_of_mean(self._rows)

    def weights(self, keys: Sequence[int]) -> tuple[Tensor, float]:
        """Return W, ``d x M``, and the trace of the gradient's covariance.

        Args:
            keys: The keys of all points, in the order of the columns of W.
        """
        H, ones = self._rows[:, :-1], self._rows[:, -1]
        solved = self._factor.solve_transposed(self._rows)
        W, of_ones = solved[:, :-1], solved[:, -1:]  # M x d, and K^-1 1
        if self._constant_mean:
            # W loses what it makes of a constant ([Rasmussen2006gp], equation 2.41).
            W = torch.addmm(W, of_ones, (ones @ H / (ones @ ones))[None], alpha=-1)
        position = {key: row for row, key in enumerate(self._keys)}
        order = [position[key] for key in keys]
        return W[order].mT, self._trace + self._trace_of_mean(self._rows)

    def _trace_of_mean(self, rows: Tensor) -> float:
        """Return what not knowing the constant mean adds to the trace."""
        if not self._constant_mean:
            return 0.0
        H, ones = rows[:, :-1], rows[:, -1]
        of_constants = ones @ H  # W 1
        return float(of_constants @ of_constants / (ones @ ones))

    def _prepare(self) -> None:
        self._whitened = self._whiten(self._points)
        self._rows = self._rows[:0]
        self._trace = self._prior_trace
        if self._keys:
            self._rows = self._factor.solve(self._gradients(self._whitened))
            self._trace -= float(torch.linalg.vector_norm(self._rows[:, :-1])) ** 2

    def _least_noise(self, num_points: int) -> float:
        """Return what rounding may take away, in units of the output scale."""
        return self._rounding * math.sqrt(num_points)

    def _whiten(self, points: Tensor) -> Tensor:
        return (points - self._theta) * self._inverse

    def _gradients(self, z: Tensor) -> Tensor:
        """Return the rows of C^T for whitened points, with a column of ones."""
        rho = self.radial.unit_profile(z.square().sum(dim=-1, keepdim=True))[1]
        rows = z.new_ones(*z.shape[:-1], z.shape[-1] + 1)
        rows[..., :-1] = z * self._slopes * rho
        return rows

    def _covariance(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Return k for whitened points, ``n x d`` and ``k x b x d``: ``k x n x b``."""
        # With the origin at theta, which is near, these squares lose few digits.
        squares = (-2.0 * z1) @ z2.mT
        squares += z1.square().sum(dim=-1, keepdim=True)
        squares += z2.square().sum(dim=-1).unsqueeze(-2)
        return self.radial.unit_profile(squares.clamp_(min=0.0))[0] * self._scale

    def _try(self, choices: Tensor) -> Placement | None:
        k, b, _ = choices.shape
        z = self._whiten(choices)
        block = self._covariance(z, z)  # k x b x b
        # As in KernelDictionary: the noise is at least what rounding may take away.
        unit = self._least_noise(len(self._keys) + b)
        noise = max(self._noise_variance, unit * self._scale)
        block.diagonal(dim1=-2, dim2=-1).fill_(self._scale + noise)
        rows, half = self._gradients(z), block.new_empty(k, 0, b)
        if self._keys:
            cross = self._covariance(self._whitened, z.flatten(0, 1))
            half = self._factor.solve(cross).unflatten(-1, (k, b)).movedim(-2, 0)
            block = torch.baddbmm(block, half.mT, half, alpha=-1)
            rows = rows - half.mT @ self._rows
        triangles, info = torch.linalg.cholesky_ex(block)
        if info.any():
            return None
        rows = torch.linalg.solve_triangular(triangles, rows, upper=False)
        gains = rows[..., :-1].square().sum(dim=(-2, -1)).tolist()
        best = max(range(k), key=gains.__getitem__)
        return Placement(
            points=choices[best],
            whitened=z[best],
            half=half[best],
            triangle=triangles[best],
            rows=rows[best],
            trace=self._trace - gains[best],
        )
