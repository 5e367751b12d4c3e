"""Where agents' sampled functions are largest: many functions at the same time.

Points lie in the unit cube. A function is a linear combination of features, and may
have other weights in each region. Needs torch and numpy only.
"""

import torch
from torch import Tensor

from botorch_dp.models.fourier import FourierFeatures
from botorch_dp.optimizers.fts.regions import Regions

# Lengths of the steps from the best candidate, in widths of the domain, and the shares
# of a step that are tried, besides no step at all.
_RADII, _SHARES = (0.05, 0.025, 0.0125, 0.006, 0.003, 0.001), (1.0, 0.4, 0.1)
_SAME = 1e-9  # a candidate this close to a box is in it
# How many functions are maximized at a time. With 100 features, what is computed for
# them stays in the cache, which takes half the time of all functions at once.
_FUNCTIONS = 512
# The same for functions that each have their own candidates, for the same memory.
_OWN_FUNCTIONS = 32


def values(
    features: FourierFeatures, regions: Regions, weights: Tensor, X: Tensor
) -> Tensor:
    """Return the values of n functions at points, ``n x C``.

    Args:
        features: The features of the functions.
        regions: The regions in which the functions have different weights.
        weights: The ``n x P x M`` weights; P is 1 if they are the same in all regions.
        X: Points, ``C x D`` if all functions share them, or ``n x C x D``.
    """
    return _values(features(X), regions, weights, X)


def _values(phi: Tensor, regions: Regions, weights: Tensor, X: Tensor) -> Tensor:
    if weights.shape[1] == 1:
        if X.dim() == 2:
            return weights.squeeze(1) @ phi.mT
        return (phi @ weights.mT).squeeze(-1)
    by_region = phi @ weights.mT  # n x C x P
    index = regions.index(X).expand(by_region.shape[:-1]).unsqueeze(-1)
    return by_region.take_along_dim(index, dim=-1).squeeze(-1)


def maximize(
    features: FourierFeatures,
    regions: Regions,
    weights: Tensor,
    candidates: Tensor,
    *,
    climb: bool,
    within: Tensor | None = None,
) -> Tensor:
    """Return the best point of each function, ``n x D``.

    Args:
        features: The features of the functions.
        regions: The regions in which the functions have different weights.
        weights: The ``n x P x M`` weights, as for :func:`values`.
        candidates: The ``C x D`` points to try.
        climb: Whether to go on from the best candidate along the gradient.
        within: An ``n x 2 x D`` tensor: a box for each function, which contains a
            candidate; or, with ``climb``, to which the candidates are scaled. A single
            function is maximized in each of the boxes.
    """
    if within is not None:
        return _maximize_within(
            features, regions, weights, candidates, within, climb=climb
        )
    phi, found = features(candidates), []
    for some in weights.split(_FUNCTIONS):
        best = _values(phi, regions, some, candidates).argmax(dim=-1)
        X = candidates[best]
        found.append(_climb(features, regions, some, X) if climb else X)
    return torch.cat(found)


def _maximize_within(
    features: FourierFeatures,
    regions: Regions,
    weights: Tensor,
    candidates: Tensor,
    boxes: Tensor,
    *,
    climb: bool,
) -> Tensor:
    weights, found = weights.expand(len(boxes), -1, -1), []
    phi = None if climb else features(candidates)
    for some, box in zip(
        weights.split(_OWN_FUNCTIONS), boxes.split(_OWN_FUNCTIONS), strict=True
    ):
        lower, upper = box[:, None, 0], box[:, None, 1]  # k x 1 x D
        if phi is None:
            tried = lower + candidates * (upper - lower)  # k x C x D
            best = values(features, regions, some, tried).argmax(dim=-1)
            X = tried.take_along_dim(best[:, None, None], dim=1).squeeze(1)
            found.append(_climb(features, regions, some, X, lower, upper))
            continue
        inside = (candidates >= lower - _SAME) & (candidates <= upper + _SAME)
        value = _values(phi, regions, some, candidates)
        value = value.masked_fill(~inside.all(dim=-1), -torch.inf)
        found.append(candidates[value.argmax(dim=-1)])
    return torch.cat(found)


def _climb(
    features: FourierFeatures,
    regions: Regions,
    weights: Tensor,
    X: Tensor,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
) -> Tensor:
    """Follow the gradient from ``n x D`` points; never to a smaller value."""
    lower = X.new_zeros(()) if lower is None else lower
    upper = X.new_ones(()) if upper is None else upper
    shares = X.new_tensor(_SHARES).unsqueeze(-1)
    for radius in _RADII:
        here = weights[:, 0]
        if weights.shape[1] > 1:
            region = regions.index(X)[:, None, None]
            here = weights.take_along_dim(region, dim=1).squeeze(1)
        value, gradient = features.value_and_gradient(X, here)
        direction = torch.nn.functional.normalize(gradient, dim=-1)
        direction = direction.nan_to_num(0.0, 0.0, 0.0).unsqueeze(1)
        kept = X.unsqueeze(1)
        tried = (kept + radius * shares * direction).clamp(lower, upper)
        # A step into another region counts with that region's weights.
        found = torch.cat([value, values(features, regions, weights, tried)], dim=-1)
        best = found.argmax(dim=-1)[:, None, None]
        X = torch.cat([kept, tried], dim=1).take_along_dim(best, dim=1).squeeze(1)
    return X
