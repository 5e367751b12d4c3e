"""The theorems of LDP-BO against simulation, closed forms and brute force."""

import math

import pytest
import torch

from botorch_dp import StepSchedule
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import CompressedSurrogate
from botorch_dp.optimizers import (
    compression_bias,
    dictionary_size_bound,
    message_mean_square,
    published_terms,
    squared_error_bound,
    squared_gradient_bound,
)
from tests.optimizers.problems import DOUBLE, seeded

REPLICATIONS, DIM = 400, 3
SIZES = StepSchedule(0.5, power=0.6)


def simulate(num_steps, *, curvature, bias, noise_std, clip_norm):
    """Messages of users with loss c ||x - z||^2 / 2, clamped to a box; the errors."""
    generator = seeded(5)
    x = torch.zeros(REPLICATIONS, DIM, **DOUBLE)
    shift = torch.zeros(DIM, **DOUBLE)
    shift[0] = bias
    errors, gradients = [], []
    for t in range(1, num_steps + 1):
        z = torch.randn(REPLICATIONS, DIM, generator=generator, **DOUBLE)
        z = 0.5 + 0.3 * z / z.norm(dim=-1, keepdim=True)
        gradient = curvature * (x - z) + shift
        assert gradient.norm(dim=-1).max() <= clip_norm  # so nothing is clipped
        noise = torch.randn(REPLICATIONS, DIM, generator=generator, **DOUBLE)
        gradients.append((curvature * (x - 0.5)).square().sum(dim=-1).mean())
        x = (x - SIZES(t) * (gradient + noise_std * noise)).clamp(0.0, 1.0)
        errors.append((x - 0.5).square().sum(dim=-1).mean())
    return torch.stack(errors).tolist(), torch.stack(gradients).tolist()


@pytest.mark.parametrize("bias", [0.0, 0.2])
@pytest.mark.parametrize("noise_std", [0.0, 0.5])
def test_bounds_hold(bias, noise_std):
    """The means over 400 replications, with 5 % for their error."""
    curvature, radius = 0.8, 0.5 * math.sqrt(DIM)
    clip_norm = curvature * (radius + 0.3) + bias
    errors, gradients = simulate(
        300, curvature=curvature, bias=bias, noise_std=noise_std, clip_norm=clip_norm
    )
    square = message_mean_square(clip_norm=clip_norm, noise_std=noise_std, dim=DIM)
    facts = {"step_sizes": SIZES, "mean_square": square, "bias": bias}
    for t in (1, 3, 10, 100, 300):
        bound = squared_error_bound(
            t, radius=radius, strong_convexity=curvature, **facts
        )
        assert errors[t - 1] <= 1.05 * bound
    gap = curvature * radius**2 / 2
    bound = squared_gradient_bound(300, gap=gap, smoothness=curvature, **facts)
    assert min(gradients) <= 1.05 * bound


def test_error_bound_is_sharp_for_a_bias():
    """Gradient descent on c x^2 / 2 with a constant bias b converges to -b / c."""
    bound = squared_error_bound(
        3000,
        step_sizes=StepSchedule(0.5, power=0.5),
        radius=1.0,
        strong_convexity=0.4,
        mean_square=0.0,
        bias=0.1,
    )
    assert bound == pytest.approx((0.1 / 0.4) ** 2, rel=1e-3)


def test_error_bound_is_exact_on_a_quadratic():
    """Without bias: e_t = (1 - c eta)^2 e + eta^2 s^2 p, and the bound is above it."""
    sizes, curvature, noise = StepSchedule(0.1, power=0.5), 0.3, 2.0
    exact = 4.0
    for t in range(1, 501):
        exact = (1 - curvature * sizes(t)) ** 2 * exact + sizes(t) ** 2 * noise
    bound = squared_error_bound(
        500,
        step_sizes=sizes,
        radius=2.0,
        strong_convexity=curvature,
        # The mean square of a message includes the gradient itself.
        mean_square=noise + curvature**2 * 4.0,
    )
    assert exact <= bound <= 1.2 * exact


def test_printed_terms_vanish_where_the_error_does_not():
    facts = {"epsilon": 2.0, "delta": 0.2, "clip_norm": 1.0, "dim": 2, "kappa": 0.1}
    facts |= {"radius": 1.0, "strong_convexity": 0.5}
    early, late = (published_terms(t, **facts) for t in (1, 10**9))
    shrink = (10**9) ** -0.505
    for name in ("noise", "compression", "start"):
        assert getattr(late, name) == pytest.approx(shrink * getattr(early, name))
    assert early.start == 1.0
    # By hand: 0.2 / 0.5 * (8 p) B^2 log(6.25) / 4 and 0.2 / 0.5 * (0.2 + 2).
    assert early.noise == pytest.approx(0.4 * 16 * math.log(6.25) / 4)
    assert early.compression == pytest.approx(0.4 * 2.2)


def test_lemma_c5_as_printed_fails():
    """Two vectors of length B: the squared difference can be 4 B^2, not 2 B^2."""
    a = torch.tensor([1.0, 0.0], **DOUBLE)
    assert (a - (-a)).square().sum() == 4.0


def test_compression_bias_bounds_functions_of_the_space(generator):
    """Random functions of known norm, whose gradients a dictionary estimates."""
    x = torch.zeros(3, **DOUBLE)
    surrogate = CompressedSurrogate(x, budget=0.2)
    kernel = surrogate._dictionary.kernel
    for _ in range(20):
        centers = torch.randn(6, 3, generator=generator, **DOUBLE)
        weights = torch.randn(6, generator=generator, **DOUBLE)
        norm = float((weights @ kernel(centers).to_dense() @ weights).sqrt())
        values = kernel(surrogate.points, centers).to_dense() @ weights
        at = x.clone().requires_grad_()
        (kernel(at.unsqueeze(0), centers).to_dense() @ weights).sum().backward()
        wrong = (surrogate.gradient(values.detach()) - at.grad).norm()
        assert wrong <= compression_bias(kappa=0.2, dim=3, rkhs_norm=norm)


def test_dictionary_size_bound_against_greedy_packing(generator):
    points = 2.0 * torch.rand(4000, 2, generator=generator, **DOUBLE)
    kept = points[:1]
    for point in points[1:]:
        if (kept - point).norm(dim=-1).min() > 0.3 * 1.0:
            kept = torch.cat([kept, point.unsqueeze(0)])
    bound = dictionary_size_bound(width=2.0, dim=2, lengthscale=1.0, distance=0.3)
    assert len(kept) <= bound <= 4 * len(kept)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: squared_error_bound(
                1,
                step_sizes=0.1,  # type: ignore[arg-type]
                radius=1.0,
                strong_convexity=1.0,
                mean_square=1.0,
            ),
            "step_sizes must be",
        ),
        (
            lambda: squared_gradient_bound(
                0, step_sizes=SIZES, gap=1.0, smoothness=1.0, mean_square=1.0
            ),
            "num_steps must be",
        ),
        (lambda: compression_bias(kappa=0.0, dim=2, rkhs_norm=1.0), "kappa must be"),
        (
            lambda: message_mean_square(clip_norm=1.0, noise_std=-1.0, dim=2),
            "noise_std must be",
        ),
        (
            lambda: dictionary_size_bound(
                width=1.0, dim=0, lengthscale=1.0, distance=0.1
            ),
            "dim must be",
        ),
    ],
)
def test_refuses(call, match):
    with pytest.raises(InvalidArgumentError, match=match):
        call()
