r"""Sliced Wasserstein distances between the posteriors of dictionaries.

The projection of a zero-mean Gaussian on a unit vector u is Gaussian with variance
:math:`u^\top \Sigma u`, and the 2-Wasserstein distance between two of them is the
difference of standard deviations ([LDPBO2025]_, definition A.8). Averaged over
directions [Bonneel2015sliced]_,

.. math::
    SW_2^2(\Sigma_1, \Sigma_2) = E_u \Big( \sqrt{u^\top \Sigma_1 u}
        - \sqrt{u^\top \Sigma_2 u} \Big)^2.

Posterior means are left out on purpose. They depend on users' losses, and no mechanism
would protect a dictionary that depends on them. Covariances depend on public points
only.

References:
    .. [Bonneel2015sliced] N. Bonneel, J. Rabin, G. Peyre and H. Pfister. Sliced and
        Radon Wasserstein Barycenters of Measures. Journal of Mathematical Imaging and
        Vision, 2015.
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Section A.2.
"""

import numpy as np
import torch
from torch import Tensor

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.dictionary import LeaveOneOut


def projection_directions(
    dim: int,
    num_projections: int = 100,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw uniformly distributed unit vectors, which are public.

    Args:
        dim: The number of dimensions p.
        num_projections: The number L of vectors; 100 in the paper.
        seed: The seed of the vectors, 0 or above.
        dtype: The dtype of the result.
        device: The device of the result; torch's default if None. The vectors are the
            same on all devices.

    Returns:
        An ``L x p`` tensor.

    Example:
        >>> projection_directions(3, 100).norm(dim=-1).min()
        tensor(1.0000, dtype=torch.float64)
    """
    check_count("dim", dim)
    check_count("num_projections", num_projections)
    normal = torch.randn(
        num_projections,
        dim,
        generator=public_generator(seed, purpose="projections"),
        dtype=torch.float64,
        device="cpu",
    )
    device = torch.get_default_device() if device is None else device
    unit = normal / normal.norm(dim=-1, keepdim=True)
    return unit.to(dtype=dtype, device=device)


def public_generator(seed: int, *, purpose: str) -> torch.Generator:
    """Return a generator on the CPU for public numbers.

    Its stream differs from that of a generator seeded with the same number for data,
    for noise or for another purpose.
    """
    seed = check_count("seed", seed, minimum=0)
    state = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1, "u8")
    return torch.Generator(device="cpu").manual_seed(int(state[0] >> np.uint64(1)))


def sliced_wasserstein(
    covariance1: Tensor, covariance2: Tensor, directions: Tensor
) -> Tensor:
    r"""Return :math:`SW_2` of zero-mean Gaussians, averaged over given directions.

    Args:
        covariance1: A ``batch_shape x p x p`` tensor.
        covariance2: A ``batch_shape x p x p`` tensor.
        directions: An ``L x p`` tensor of unit vectors.

    Returns:
        A ``batch_shape`` tensor.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> directions = projection_directions(2)
        >>> sliced_wasserstein(identity, 4 * identity, directions)  # |1 - 2|
        tensor(1., dtype=torch.float64)
    """
    variance1 = projected_variances(covariance1, directions)
    variance2 = projected_variances(covariance2, directions)
    return _distance(variance1, variance2)


def projected_variances(covariance: Tensor, directions: Tensor) -> Tensor:
    """Return the variances along directions.

    Args:
        covariance: A ``batch_shape x p x p`` tensor.
        directions: An ``L x p`` tensor.

    Returns:
        A ``batch_shape x L`` tensor; values that rounding made negative are zero.
    """
    dim = covariance.shape[-1]
    if directions.dim() != 2 or directions.shape[-1] != dim:
        raise InvalidArgumentError(
            f"directions must have shape L x {dim}, got {tuple(directions.shape)}."
        )
    return ((directions @ covariance) * directions).sum(dim=-1).clamp(min=0.0)


def leave_one_out_distances(
    leave_one_out: LeaveOneOut,
    covariance: Tensor,
    directions: Tensor,
    *,
    reference: Tensor | None = None,
) -> Tensor:
    r"""Return the distances after deleting each of the points, all at once.

    Without point j the variance along u increases by
    :math:`(u^\top w_j)^2 / K^{-1}_{jj}`. This costs :math:`O(L p M)` for all M points,
    compared with :math:`O(M^4)` for M posteriors.

    Args:
        leave_one_out: From a dictionary's ``leave_one_out(C)``, with C the covariance
            of the gradient with the values at the points.
        covariance: The ``batch_shape x p x p`` posterior covariance with all points.
        directions: An ``L x p`` tensor of unit vectors.
        reference: The ``batch_shape x p x p`` covariance to compare with, such as that
            before other points were deleted; ``covariance`` by default.

    Returns:
        A ``batch_shape x M`` tensor.
    """
    variances = projected_variances(covariance, directions)  # batch_shape x L
    along = directions @ leave_one_out.weights  # batch_shape x L x M
    rise = along.square() / leave_one_out.inverse_diagonal.unsqueeze(-2)
    before = variances
    if reference is not None:
        before = projected_variances(reference, directions)
    without = variances.unsqueeze(-1) + rise
    return _distance(without.mT, before.unsqueeze(-2))


def _distance(variance1: Tensor, variance2: Tensor) -> Tensor:
    """Return the root mean squared difference of standard deviations.

    The difference is computed as a quotient, which loses fewer digits than subtracting
    two roots.
    """
    tiny = torch.finfo(variance1.dtype).tiny
    sums = (variance1.sqrt() + variance2.sqrt()).clamp(min=tiny)
    return ((variance1 - variance2) / sums).square().mean(dim=-1).sqrt()
