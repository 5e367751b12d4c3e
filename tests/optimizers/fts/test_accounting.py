"""Privacy losses as the paper states them."""

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import published_privacy_loss


@pytest.mark.parametrize(
    ("q", "z", "published"),
    [
        (0.15, 1.0, 5.93),
        (0.25, 1.0, 9.91),
        (0.5, 1.0, 20.12),
        (0.25, 1.2, 7.39),
        (0.25, 1.5, 5.22),
    ],
)
def test_the_papers_losses(q, z, published):
    loss = published_privacy_loss(
        sampling_rate=q, noise_multiplier=z, num_rounds=40, delta=200**-1.1
    )
    assert round(loss, 2) == published


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling_rate": 1.0},
        {"noise_multiplier": 0.0},
        {"num_rounds": 0},
        {"delta": 0},
    ],
)
def test_refuses(wrong):
    (name,) = wrong
    kwargs = {"sampling_rate": 0.5, "noise_multiplier": 1.0, "num_rounds": 3}
    with pytest.raises(InvalidArgumentError, match=name):
        published_privacy_loss(**{**kwargs, "delta": 1e-5, **wrong})
