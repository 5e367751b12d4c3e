r"""Fast losses and gradients of regression records for many replications.

A record is (rows, targets, weights, weighted rows): covariates ``R x 1 x p``, responses
``R x 1 x 1``, weights ``R x 1``, and covariates times weights ``R x p``.
"""

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, logsigmoid

from botorch_dp.privacy import mallows_weights
from botorch_dp.problems.streams import Record

# The weights of the paper: min(1, 2 / ||x||^2).
MALLOWS_CONSTANT = 2.0


def regression_records(
    inputs: Tensor, targets: Tensor, *, mallows: bool, like: Tensor
) -> Record:
    """Return the records of a chunk, with Mallows weights or with weights one.

    Args:
        inputs: A ``C x R x p`` tensor.
        targets: A ``C x R`` tensor.
        mallows: Whether to weight by min(1, 2 / ||x||^2).
        like: A tensor with the dtype and device of the records.
    """
    if mallows:
        weights = mallows_weights(inputs, constant=MALLOWS_CONSTANT)  # C x R
    else:
        weights = torch.ones_like(targets)
    weights = weights.unsqueeze(-1)
    return (
        inputs.unsqueeze(-2).to(like),
        targets[..., None, None].to(like),
        weights.to(like),
        (weights * inputs).to(like),
    )


def huber_losses(record: Record, X: Tensor, c: float, *, relu: bool = False) -> Tensor:
    """Return the weighted Huber losses of the residuals at ``R x M x p`` points.

    Args:
        record: A record.
        X: The points.
        c: The residual at which the Huber loss changes from quadratic to linear.
        relu: Whether the response is the positive part of the linear predictor.
    """
    rows, targets, weights, _ = record
    # A row times X^T is up to twice as fast as X times a column.
    fitted = torch.bmm(rows, X.mT)  # R x 1 x M
    if relu:
        fitted = fitted.relu()
    values = huber_loss(fitted, targets.expand_as(fitted), reduction="none", delta=c)
    return values.squeeze(1) * weights


def huber_gradients(
    record: Record, x: Tensor, c: float, *, relu: bool = False
) -> Tensor:
    """Return the gradients of :func:`huber_losses` at ``R x p`` points."""
    rows, targets, _, weighted = record
    fitted = torch.bmm(rows, x.unsqueeze(-1))  # R x 1 x 1
    if relu:
        slopes = (fitted.relu() - targets).clamp(min=-c, max=c) * (fitted > 0)
    else:
        slopes = (fitted - targets).clamp(min=-c, max=c)
    return slopes.squeeze(-1) * weighted


def signed_records(record: Record) -> Record:
    """Return a classification record with the label, -1 or 1, moved into the rows."""
    rows, labels, weights, weighted = record
    return rows * labels, labels, weights, weighted * labels.squeeze(-1)


def logistic_losses(record: Record, X: Tensor) -> Tensor:
    """Return w log(1 + exp(-y x theta)) of signed records at ``R x M x p`` points."""
    rows, _, weights, _ = record
    margins = torch.bmm(rows, X.mT).squeeze(1)  # R x M
    return logsigmoid(margins) * -weights


def logistic_gradients(record: Record, x: Tensor) -> Tensor:
    """Return the gradients of :func:`logistic_losses` at ``R x p`` points."""
    rows, _, _, weighted = record
    margins = torch.bmm(rows, x.unsqueeze(-1)).squeeze(-1)  # R x 1
    return (-margins).sigmoid() * -weighted
