"""Maxima of many functions, against brute force."""

import pytest
import torch

from botorch_dp.models.fourier import FourierFeatures
from botorch_dp.optimizers.fts.maximization import maximize, values
from botorch_dp.optimizers.fts.regions import Regions
from tests.optimizers.problems import DOUBLE, seeded

M = 30
FEATURES = FourierFeatures.draw(torch.full((2,), 0.3, **DOUBLE), num_features=M, seed=0)
REGIONS = Regions(2, 4)


def functions(n, p, seed=3):
    return torch.randn(n, p, M, generator=seeded(seed), **DOUBLE)


def points(*shape, seed=1):
    return torch.rand(*shape, 2, generator=seeded(seed), **DOUBLE)


@pytest.mark.parametrize("p", [1, 4])
@pytest.mark.parametrize("shape", [(7,), (5, 7)])
def test_values_are_those_of_a_loop(p, shape):
    weights, X = functions(5, p), points(*shape)
    got = values(FEATURES, REGIONS, weights, X)
    for n in range(5):
        for c, x in enumerate(X if X.dim() == 2 else X[n]):
            region = int(REGIONS.index(x)) if p > 1 else 0
            expected = float(FEATURES(x[None]) @ weights[n, region])
            assert float(got[n, c]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("p", [1, 4])
def test_the_best_candidate(p):
    weights, X = functions(5, p), points(50)
    best = maximize(FEATURES, REGIONS, weights, X, climb=False)
    found = values(FEATURES, REGIONS, weights, X)
    assert torch.equal(best, X[found.argmax(dim=-1)])


@pytest.mark.parametrize("p", [1, 4])
def test_climbing_never_goes_down_and_stays_inside(p):
    weights, X = functions(20, p), points(10)
    best = maximize(FEATURES, REGIONS, weights, X, climb=False).unsqueeze(1)
    higher = maximize(FEATURES, REGIONS, weights, X, climb=True).unsqueeze(1)
    before, after = (values(FEATURES, REGIONS, weights, x) for x in (best, higher))
    assert (after >= before).all()
    assert (after > before + 1e-6).any()
    assert higher.min() >= 0.0
    assert higher.max() <= 1.0


def test_maximizes_as_well_as_many_restarts():
    """Against a grid of 40,000 points, in units of the functions' spread."""
    weights = functions(20, 1)
    X = maximize(FEATURES, Regions(2, 1), weights, points(1000), climb=True)
    found = values(FEATURES, REGIONS, weights, X.unsqueeze(1)).squeeze(-1)
    axis = torch.linspace(0.0, 1.0, 200, **DOUBLE)
    whole = weights.squeeze(1) @ FEATURES(torch.cartesian_prod(axis, axis)).mT
    gaps = (whole.amax(dim=-1) - found) / whole.std()
    assert gaps.mean() < 0.02  # a narrow peak may be missed, now and then
    assert gaps.median() < 1e-3
