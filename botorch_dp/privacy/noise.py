"""Noise: the sources of randomness.

There are three sources, from fastest to safest:

* :class:`SeededNoise`: a ``torch.Generator``. It is reproducible, so it is for
  experiments only.
* :class:`SystemNoise` (the default): uniforms from the operating system's entropy,
  through the inverse distribution functions. It is never a generator that was seeded
  once: torch's CPU generators have 32-bit seeds, which an attacker can enumerate in
  hours.
* :class:`SecureNoise`: the exact discrete samplers of OpenDP, which also close the leak
  of floating-point noise [Mironov2012significance]_: the set of doubles that x + noise
  can reach depends on x.

All noise is drawn and added in double precision, then rounded to the value's dtype.

References:
    .. [Mironov2012significance] I. Mironov. On Significance of the Least Significant
        Bits for Differential Privacy. CCS 2012.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from botorch_dp._imports import import_extra
from botorch_dp._validation import check_instance
from botorch_dp.exceptions import InvalidArgumentError

# OpenDP accepts granularities 2^k down to that of the smallest double.
_FINEST_GRID = -1074


class NoiseSource(ABC):
    """Adds noise to private values, and samples records."""

    name: ClassVar[str]
    description: ClassVar[str]

    def add_gaussian(self, private_value: Tensor, std: float) -> Tensor:
        """Return the value plus independent N(0, std^2) noise on every entry."""
        noise = self._normal(private_value.shape, private_value.device)
        return noise.mul_(std).add_(private_value).to(private_value.dtype)

    def add_gaussian_to_all(
        self, private_values: Sequence[Tensor], std: float
    ) -> list[Tensor]:
        """Return all values plus independent N(0, std^2) noise, from one draw."""
        joined = torch.cat([value.flatten() for value in private_values])
        noisy = self.add_gaussian(joined, std)
        parts = noisy.split([value.numel() for value in private_values])
        return [
            part.view(value.shape)
            for part, value in zip(parts, private_values, strict=True)
        ]

    def add_laplace(self, private_value: Tensor, scale: float) -> Tensor:
        """Return the value plus independent Laplace(scale) noise on every entry."""
        noise = self._laplace(private_value.shape, private_value.device)
        return noise.mul_(scale).add_(private_value).to(private_value.dtype)

    def noisy_argmax(self, private_chunks: Iterable[Tensor], scale: float) -> Tensor:
        """Return the index of the largest score after Gumbel(scale) noise.

        Scores are divided by ``scale`` and never exponentiated, so nothing overflows.
        If any score of a row is not finite, the row's choice is uniform: it is the
        index of the largest noise.

        Args:
            private_chunks: Tensors ``batch_shape x m_i`` of consecutive candidates.
            scale: The scale of the noise.

        Returns:
            A ``batch_shape`` tensor of indices.
        """
        return self._argmax(private_chunks, scale, "gumbel")

    def exponential_argmax(
        self, private_chunks: Iterable[Tensor], scale: float
    ) -> Tensor:
        """Return the index of the largest score after Exponential(scale) noise.

        Otherwise it is like :meth:`noisy_argmax`.

        Args:
            private_chunks: Tensors ``batch_shape x m_i`` of consecutive candidates.
            scale: The scale, which is also the mean, of the noise.
        """
        return self._argmax(private_chunks, scale, "exponential")

    def _argmax(self, chunks: Iterable[Tensor], scale: float, kind: str) -> Tensor:
        offset, best, blind, broken = 0, None, None, None
        for chunk in chunks:
            # Small uniforms, which are precise, give the upper tail, which decides.
            uniform = self.uniform(chunk.shape, chunk.device)
            rate = uniform if kind == "exponential" else -torch.log1p(-uniform)
            noise = -rate.log()
            scores = chunk.double() / scale
            chunk_broken = ~scores.isfinite().all(dim=-1)
            best = _larger(best, scores.nan_to_num(0.0, 0.0, 0.0) + noise, offset)
            blind = _larger(blind, noise, offset)
            broken = chunk_broken if broken is None else broken | chunk_broken
            offset += chunk.shape[-1]
        assert best is not None
        assert blind is not None
        assert broken is not None
        return torch.where(broken, blind[1], best[1])

    def poisson_sample(
        self, shape: torch.Size, sampling_rate: float, device: torch.device
    ) -> Tensor:
        """Return a mask that contains each record with probability ``sampling_rate``.

        Args:
            shape: ``batch_shape x n``; batch elements are sampled independently.
            sampling_rate: The probability.
            device: The device of the mask.
        """
        return self.uniform(shape, device) < sampling_rate

    def fixed_size_sample(
        self, shape: torch.Size, sample_size: int, device: torch.device
    ) -> Tensor:
        """Return the ``batch_shape x sample_size`` indices of uniform subsets.

        Args:
            shape: ``batch_shape x n``; batch elements are sampled independently.
            sample_size: The size of a subset.
            device: The device of the indices.
        """
        return self.uniform(shape, device).topk(sample_size).indices

    @abstractmethod
    def uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return doubles strictly between zero and one."""

    @abstractmethod
    def _normal(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return standard normal doubles, in memory that the caller may overwrite."""

    @abstractmethod
    def _laplace(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return standard Laplace doubles, in memory that the caller may overwrite."""

    def check_device(self, device: torch.device) -> None:
        """Raise if the source cannot draw for tensors on ``device``."""
        del device


class SeededNoise(NoiseSource):
    """Noise from a ``torch.Generator``: anyone who knows the seed can subtract it.

    Args:
        generator: A generator on the device of the values.
    """

    name = "seeded"
    description = "seeded noise: for experiments only"

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = check_instance(
            "generator", generator, torch.Generator, expected="a torch.Generator"
        )

    def check_device(self, device: torch.device) -> None:
        """Raise if the generator is on another kind of device."""
        if self._generator.device.type != device.type:
            raise InvalidArgumentError(
                f"generator is on {self._generator.device}, the value on {device}; "
                f"use torch.Generator(device={device.type!r})."
            )

    def add_gaussian_to_all(
        self, private_values: Sequence[Tensor], std: float
    ) -> list[Tensor]:
        """Return all values plus independent noise, from a draw for each value."""
        # One draw for all would give other numbers for the same seed.
        return [self.add_gaussian(value, std) for value in private_values]

    def uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return doubles strictly between zero and one."""
        uniform = torch.rand(
            shape, generator=self._generator, dtype=torch.float64, device=device
        )
        return uniform + 2.0**-54  # torch's grid of 2^-53 includes zero

    def _normal(self, shape: torch.Size, device: torch.device) -> Tensor:
        return torch.randn(
            shape, generator=self._generator, dtype=torch.float64, device=device
        )

    def _laplace(self, shape: torch.Size, device: torch.device) -> Tensor:
        uniform = self.uniform(torch.Size([2, *shape]), device)
        return torch.where(uniform[0] < 0.5, 1.0, -1.0) * -uniform[1].log()


class SystemNoise(NoiseSource):
    """Noise from the operating system's entropy, never seeded.

    64 random bits give a probability in (0, 1/2) and a sign, so the tails reach 9.2
    standard deviations; the probability beyond is less than 2^-64. The bits go to the
    device in one transfer and become noise there.
    """

    name = "system"
    description = "operating system entropy, floating-point noise"

    def uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return doubles strictly between zero and one."""
        half = self._signed_half(shape, device)
        return torch.where(half > 0, half, 1.0 + half).clamp_(max=1.0 - 2.0**-53)

    def _normal(self, shape: torch.Size, device: torch.device) -> Tensor:
        half = self._signed_half(shape, device)
        return torch.special.ndtri(half.abs()).copysign_(half)

    def _laplace(self, shape: torch.Size, device: torch.device) -> Tensor:
        half = self._signed_half(shape, device)
        return half.abs().mul_(2.0).log_().copysign_(half)

    @staticmethod
    def _signed_half(shape: torch.Size, device: torch.device) -> Tensor:
        """Return uniforms in (-1/2, 1/2), never zero, with full precision near it.

        A random 64-bit integer w is as likely as -1 - w, and w + 1/2 is symmetric.
        """
        words = torch.zeros(shape, dtype=torch.int64, device="cpu")
        if shape.numel():
            entropy = bytearray(os.urandom(8 * shape.numel()))
            words = torch.frombuffer(entropy, dtype=torch.int64).reshape(shape)
        return words.to(device).double().add_(0.5).mul_(2.0**-64)


class SecureNoise(SystemNoise):
    """Discrete noise sampled exactly by OpenDP, from the system's entropy.

    Args:
        grid_exponent: Noise and values are multiples of 2^grid_exponent. None is the
            finest grid; -20 is about three times faster and costs a little privacy,
            which is charged.

    Raises:
        MissingExtraError: If OpenDP is not installed.
    """

    name = "secure"
    description = "operating system entropy, exact discrete noise (OpenDP)"

    def __init__(self, grid_exponent: int | None = None) -> None:
        if grid_exponent is not None and (
            isinstance(grid_exponent, bool)
            or not isinstance(grid_exponent, int)
            or not _FINEST_GRID <= grid_exponent <= 1023
        ):
            raise InvalidArgumentError(
                "grid_exponent must be None or a whole number from "
                f"{_FINEST_GRID} to 1023, got {grid_exponent!r}."
            )
        _opendp()  # fail here, not at the first release
        self.grid_exponent = grid_exponent

    def add_gaussian(self, private_value: Tensor, std: float) -> Tensor:
        """Return the value on the grid plus discrete Gaussian noise."""
        return self._invoke("gaussian", private_value, std)

    def add_laplace(self, private_value: Tensor, scale: float) -> Tensor:
        """Return the value on the grid plus discrete Laplace noise."""
        return self._invoke("laplace", private_value, scale)

    def _argmax(self, chunks: Iterable[Tensor], scale: float, kind: str) -> Tensor:
        scores = torch.cat(list(chunks), dim=-1).double()
        broken = ~scores.isfinite().all(dim=-1, keepdim=True)
        scores = torch.where(broken, torch.zeros_like(scores), scores)
        dp = _opendp()
        choose = dp.m.make_noisy_max(
            dp.vector_domain(dp.atom_domain(T=float, nan=False)),
            dp.linf_distance(T=float),
            # The measure decides which noise OpenDP samples.
            dp.max_divergence()
            if kind == "exponential"
            else dp.zero_concentrated_divergence(),
            scale=scale,
        )
        rows = scores.reshape(-1, scores.shape[-1]).cpu().numpy()
        chosen = [choose(row) for row in rows]
        return torch.tensor(chosen, device=scores.device).reshape(scores.shape[:-1])

    def gaussian_rho(self, *, size: int, std: float, sensitivity: float) -> float:
        """Return the zCDP cost of ``size`` numbers with this noise and its rounding.

        Only zCDP is proven for discrete Gaussian noise on many coordinates.
        """
        return _measurement("gaussian", size, std, self.grid_exponent).map(sensitivity)

    def laplace_epsilon(self, *, size: int, scale: float, sensitivity: float) -> float:
        """Return the pure cost of ``size`` numbers with this noise."""
        return _measurement("laplace", size, scale, self.grid_exponent).map(sensitivity)

    def _invoke(self, kind: str, private_value: Tensor, scale: float) -> Tensor:
        # OpenDP would turn nan into a number and infinities into the largest doubles.
        value = private_value.double().nan_to_num(0.0, 0.0, 0.0)
        measure = _measurement(kind, value.numel(), scale, self.grid_exponent)
        noisy = measure(value.reshape(-1).cpu().numpy())
        return torch.tensor(
            noisy, dtype=private_value.dtype, device=private_value.device
        ).reshape(private_value.shape)


def make_noise_source(
    generator: torch.Generator | None, secure: bool | SecureNoise
) -> NoiseSource:
    """Return the source that a mechanism's two arguments ask for."""
    if generator is not None and secure:
        raise InvalidArgumentError(
            "generator and secure exclude each other, because secure noise cannot be "
            f"seeded; got generator={generator!r}, secure={secure!r}."
        )
    if isinstance(secure, SecureNoise):
        return secure
    if secure is True:
        return SecureNoise()
    if secure is not False:
        raise InvalidArgumentError(
            f"secure must be True, False or a SecureNoise, got {secure!r}."
        )
    return SystemNoise() if generator is None else SeededNoise(generator)


def _larger(
    best: tuple[Tensor, Tensor] | None, noisy: Tensor, offset: int
) -> tuple[Tensor, Tensor]:
    """Return the running maximum and its index after one more chunk."""
    value, index = noisy.max(dim=-1)
    index = index + offset
    if best is None:
        return value, index
    better = value > best[0]
    return torch.where(better, value, best[0]), torch.where(better, index, best[1])


def _opendp() -> Any:
    opendp = import_extra("opendp.prelude", extra="secure", purpose="secure=True")
    opendp.enable_features("contrib")
    return opendp


@lru_cache(maxsize=64)
def _measurement(kind: str, size: int, scale: float, grid_exponent: int | None) -> Any:
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    if kind == "gaussian":
        metric, make = dp.l2_distance(T=float), dp.m.make_gaussian
    else:
        metric, make = dp.l1_distance(T=float), dp.m.make_laplace
    return make(domain, metric, scale=scale, k=grid_exponent)
