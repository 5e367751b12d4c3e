r"""Chain rules through the transforms of BoTorch's models.

A BoTorch model computes :math:`f(x) = s \, g(z(x)) + c`, where g is the Gaussian
process, z the input transform and s and c come from the outcome transform. With the
Jacobian :math:`J = \partial z / \partial x`, a gradient of g with mean
:math:`\mu` and covariance :math:`\Sigma` becomes one of f with mean
:math:`s J^\top \mu` and covariance :math:`s^2 J^\top \Sigma J`.
"""

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.models.transforms.outcome import (
    ChainedOutcomeTransform,
    OutcomeTransform,
    Standardize,
)
from torch import Tensor


def transform_points(
    model: Model, X: Tensor, batch_shape: torch.Size
) -> tuple[Tensor, Tensor | None]:
    r"""Apply a model's input transform, and differentiate it.

    Args:
        model: The model, in evaluation mode.
        X: A ``... x q x d`` tensor.
        batch_shape: The model's batch shape, which the transform may have as well.

    Returns:
        The points in the coordinates of the kernel, ``... x q x d'``, and the Jacobians
        ``... x q x d' x d``, or None if there is no transform. Both are differentiable
        in X if X requires a gradient.
    """
    if getattr(model, "input_transform", None) is None:
        return X, None
    shape = torch.broadcast_shapes(X.shape[:-2], batch_shape)
    keep = X.requires_grad and torch.is_grad_enabled()
    with torch.enable_grad():
        at = (X if keep else X.detach()).expand(*shape, *X.shape[-2:])
        at = at if keep else at.requires_grad_()
        Z = model.transform_inputs(at)
        if Z.shape[-2] != X.shape[-2]:
            raise UnsupportedError(
                f"{type(model.input_transform).__name__} makes {Z.shape[-2]} points of "
                f"{X.shape[-2]}, and so f has no gradient at one point."
            )
        # A row of Z depends on the same row of X only.
        rows = [
            _gradient(Z[..., j].sum(), at, keep=keep, retain=j < Z.shape[-1] - 1)
            for j in range(Z.shape[-1])
        ]
    jacobian = torch.stack(rows, dim=-2)
    return (Z, jacobian) if keep else (Z.detach(), jacobian.detach())


def outcome_scale(model: Model) -> Tensor | None:
    """Return the derivative of the outcome transform's inverse, or None.

    Args:
        model: A model with ``Standardize``, a chain of them, or no outcome transform.

    Returns:
        A tensor that broadcasts with ``batch_shape x (m) x 1 x 1``, where the dimension
        of the outputs is missing for one output.

    Raises:
        UnsupportedError: If the transform is not affine.
    """
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return None
    stdvs = _stdvs(transform)  # batch_shape x 1 x m
    return stdvs.mT.unsqueeze(-1) if model.num_outputs > 1 else stdvs


def outcome_shift(model: Model) -> Tensor:
    """Return c in f = s g + c, in the shape of :func:`outcome_scale`."""
    *inner, last = _parts(model.outcome_transform)
    shift: Tensor = last.means
    for part in reversed(inner):
        shift = part.means + part.stdvs * shift
    return shift.mT.unsqueeze(-1) if model.num_outputs > 1 else shift


def _stdvs(transform: OutcomeTransform) -> Tensor:
    first, *others = _parts(transform)
    product: Tensor = first.stdvs
    for part in others:
        product = product * part.stdvs
    return product


def _parts(transform: OutcomeTransform) -> list[Standardize]:
    parts = (
        [*transform.values()]
        if isinstance(transform, ChainedOutcomeTransform)
        else [transform]
    )
    for part in parts:
        if type(part) is not Standardize:
            raise UnsupportedError(
                f"The outcome transform {type(part).__name__} is not affine, so the "
                "gradient is not Gaussian in the original units. Use Standardize, or "
                "ask for the gradient of the transformed outcome: "
                "gradient_posterior(model, X, latent=True)."
            )
    return parts


def _gradient(total: Tensor, at: Tensor, *, keep: bool, retain: bool) -> Tensor:
    if not total.requires_grad:  # a constant
        return torch.zeros_like(at)
    (gradient,) = torch.autograd.grad(
        total, at, create_graph=keep, retain_graph=keep or retain, allow_unused=True
    )
    return torch.zeros_like(at) if gradient is None else gradient
