"""The Gaussian processes inside a model, each with its own geometry.

An acquisition function of a model with outputs, batch dimensions, fantasies or samples
of hyperparameters is a weighted sum over single processes. They see candidates through
their own input transform.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from botorch.acquisition.objective import (
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP
from gpytorch.kernels import Kernel
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp.acquisition._covariances import (
    KnownPoints,
    PlainPoints,
    WhitenedPoints,
)
from botorch_dp.acquisition._trace import Geometry
from botorch_dp.models.chain_rules import outcome_scale
from botorch_dp.models.gradients import transformed
from botorch_dp.models.kernels.radial import RadialKernel, radial_kernel
from botorch_dp.models.latent_gp import LatentGP, candidate_noise, latent_gp, member

Index = tuple[int, ...]


@dataclass
class Members:
    """The processes of one exact model.

    Attributes:
        model: The model.
        known: What it knows.
        geometries: The geometry of each process that differs from the others, with
            its position in the batch shape.
        radial: The kernel of the last one in radial form, in the units of the outcome.
    """

    model: ExactGP
    known: LatentGP
    geometries: list[tuple[Index, Geometry]]
    radial: RadialKernel | None

    def at(self, X: Tensor) -> Iterator[tuple[Tensor, Geometry]]:
        """Return the candidates in the coordinates of each process.

        Args:
            X: A ``batch_shape x q x d`` tensor.
        """
        has_transform = getattr(self.model, "input_transform", None) is not None
        if not has_transform:
            yield from ((X, geometry) for _, geometry in self.geometries)
            return
        dims = self.known.root.dim() - 2
        if not dims:
            yield self.model.transform_inputs(X), self.geometries[0][1]
            return
        # A transform has the batch shape of the inputs, and no dimension for outputs.
        outputs = 1 if getattr(self.model, "num_outputs", 1) > 1 else 0
        inner = X.reshape(*X.shape[:-2], *[1] * (dims - outputs), *X.shape[-2:])
        Z = self.model.transform_inputs(inner)
        Z = Z.unsqueeze(-3) if outputs else Z
        every = slice(None)
        for index, geometry in self.geometries:
            own = zip(index, Z.shape[-2 - dims : -2], strict=True)
            place = (i if size > 1 else 0 for i, size in own)
            yield Z[(..., *place, every, every)], geometry


def members_of(
    model: ExactGP | ModelListGP, X_center: Tensor, weights: Tensor | None
) -> list[Members]:
    """Return the processes of a model, for each of its exact models.

    Args:
        model: An exact model, or a list of them.
        X_center: The points whose gradients count, ``p x d``.
        weights: The weight of each output in a sum, or None if the outputs count each
            on its own.
    """
    members = []
    for part in model.models if isinstance(model, ModelListGP) else [model]:
        outputs = getattr(part, "num_outputs", 1)
        own, weights = (
            (None, None)
            if weights is None
            else weights.split([outputs, len(weights) - outputs])
        )
        members.append(_members(part, X_center, own))
    return members


def output_weights(
    model: ExactGP | ModelListGP, transform: PosteriorTransform | None
) -> Tensor | None:
    """Return the weights of a scalarization of the outputs.

    Raises:
        UnsupportedError: If the transform is another one.
    """
    if transform is None:
        return None
    if not isinstance(transform, ScalarizedPosteriorTransform):
        raise UnsupportedError(
            "posterior_transform must be a ScalarizedPosteriorTransform, got "
            f"{type(transform).__name__}: others have no Gaussian gradient."
        )
    weights: Tensor = transform.weights
    outputs = getattr(model, "num_outputs", 1)
    if len(weights) != outputs:
        raise UnsupportedError(
            f"posterior_transform has {len(weights)} weights, but the model has "
            f"{outputs} outputs."
        )
    return weights


@dataclass
class _Process:
    """One Gaussian process, and how much its gradients count."""

    index: Index
    kernel: Kernel
    inputs: Tensor
    root: Tensor
    noise: Tensor
    centers: Tensor
    weights: Tensor  # p x d, of the derivatives in the coordinates of the kernel

    def is_like(self, other: "_Process") -> bool:
        """Whether both differ in their targets at most, as fantasies do."""
        return all(
            mine.shape == theirs.shape and torch.equal(mine, theirs)
            for mine, theirs in zip(self._state, other._state, strict=True)
        )

    @property
    def _state(self) -> list[Tensor]:
        parts = [self.inputs, self.root, self.noise, self.centers]
        return [*parts, *self.kernel.parameters()]


def _members(model: ExactGP, X_center: Tensor, weights: Tensor | None) -> Members:
    known = latent_gp(model)
    distinct: list[_Process] = []
    for process in _processes(model, known, X_center, weights):
        same = next((p for p in distinct if p.is_like(process)), None)
        if same is None:
            distinct.append(process)
        else:
            same.weights = same.weights + process.weights
    geometries = []
    radial = None
    for process in distinct:
        geometry, radial = _geometry(known, process)
        geometries.append((process.index, geometry))
    scale = outcome_scale(model)
    if radial is not None and scale is not None:
        outputscale = radial.outputscale * scale.flatten()[0].square()
        radial = replace(radial, outputscale=outputscale)
    return Members(model, known, geometries, radial)


def _processes(
    model: ExactGP, known: LatentGP, X_center: Tensor, weights: Tensor | None
) -> Iterator[_Process]:
    batch_shape = known.root.shape[:-2]
    centers, jacobian = transformed(model, known, X_center)
    squares = _squared_rows(model, centers, jacobian)
    scale = outcome_scale(model)
    if scale is not None:
        squares = squares * scale.square()
    several = getattr(model, "num_outputs", 1) > 1
    if weights is not None:
        weights = weights.detach().to(squares).square()
        squares = squares * (weights[:, None, None] if several else weights)
    outputs = batch_shape[-1] if several else 1
    squares = squares / (batch_shape.numel() // outputs)  # the mean over the batch
    noise = candidate_noise(model, known).expand(batch_shape)
    inputs, root, centers, squares = (
        part.detach().expand(*batch_shape, *part.shape[-2:])
        for part in (known.inputs, known.root, centers, squares)
    )
    for index in product(*map(range, batch_shape)):
        kernel = member(known.kernel, index) if index else known.kernel
        parts = (part[index] for part in (inputs, root, noise, centers, squares))
        yield _Process(index, kernel, *parts)


def _squared_rows(model: ExactGP, centers: Tensor, jacobian: Tensor | None) -> Tensor:
    """Return the weights of derivatives in the coordinates of the kernel.

    With the Jacobian J, the trace of J^T S J is a weighted trace of S if J J^T is
    diagonal: each coordinate of the kernel depends on coordinates of its own.
    """
    if jacobian is None:
        return torch.ones_like(centers)
    gram = jacobian.detach() @ jacobian.detach().mT
    squares = gram.diagonal(dim1=-2, dim2=-1)
    if not torch.equal(gram, squares.diag_embed()):
        raise UnsupportedError(
            f"{type(model.input_transform).__name__} mixes coordinates: "
            "GradientInformation supports input transforms of single coordinates."
        )
    return squares


def _geometry(
    known: LatentGP, process: _Process
) -> tuple[Geometry, RadialKernel | None]:
    inputs, centers, root = process.inputs, process.centers, process.root
    alone = replace(
        known,
        kernel=process.kernel,
        inputs=inputs,
        root=root,
        weights=torch.zeros_like(inputs[..., 0]),
    )
    _, half, covariance = alone.gradient_covariance(centers)  # p x n x d
    radial = radial_kernel(process.kernel, inputs)
    points: KnownPoints
    if radial is None:
        scale, inverse = root.new_ones(()), torch.ones_like(centers[0])
        points = PlainPoints(process.kernel, inputs, centers)
    else:
        scale, inverse = radial.outputscale, radial.inverse_lengthscale
        points = WhitenedPoints(radial, inputs, centers)
    variances = covariance.diagonal(dim1=-2, dim2=-1)
    geometry = Geometry(
        known=points,
        root=_joint_root(root / scale.sqrt(), half / (inverse * scale.sqrt())),
        noise=process.noise / scale,
        weights=(process.weights * inverse.square()).flatten() * scale,
        trace=(process.weights * variances).sum(),
        scale=inverse,
    )
    return geometry, radial


def _joint_root(root: Tensor, half: Tensor) -> Tensor:
    """Return [[L, 0], [U, I]], which eliminates D from values and gradients at once.

    Args:
        root: L, ``n x n``.
        half: U^T for each centre, ``p x n x d``.
    """
    n, half = len(root), half.transpose(0, 1).flatten(1)  # n x p d
    joint = torch.eye(sum(half.shape), dtype=root.dtype, device=root.device)
    joint[:n, :n] = root
    joint[n:, :n] = half.mT
    return joint
