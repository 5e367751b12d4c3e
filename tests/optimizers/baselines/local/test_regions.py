"""Searches that minimize a confidence bound near the best point."""

import pytest
import torch

from botorch_dp import GradientTrustRegion, MinUCB
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.baselines.local.regions import least_confidence_bound
from botorch_dp.optimizers.baselines.local.surrogate import fit_local_model
from tests.devices import seeded
from tests.optimizers.problems import DOUBLE, unit_box


def bowl(X):
    return (X - 0.3).square().sum(dim=-1)


def bound(model, X, beta):
    posterior = model.posterior(X.unsqueeze(-2))
    return (posterior.mean + (beta * posterior.variance).sqrt()).flatten()


@pytest.mark.default_device
class TestLeastConfidenceBound:
    @pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
    def test_a_grid_finds_nothing_better(self, beta):
        X = torch.rand(15, 2, generator=seeded(), **DOUBLE)
        model, _ = fit_local_model(X, bowl(X), None, refit=True)
        start = X[bowl(X).argmin()]
        found = least_confidence_bound(model, start, unit_box(2), beta)
        ticks = torch.linspace(0.0, 1.0, 41, **DOUBLE)
        grid = torch.cartesian_prod(ticks, ticks)
        with torch.no_grad():
            least = bound(model, found.unsqueeze(0), beta)
            assert least <= bound(model, start.unsqueeze(0), beta)
            assert least <= bound(model, grid, beta).min() + 1e-6

    def test_stays_in_its_box(self):
        X = torch.rand(15, 2, generator=seeded(), **DOUBLE)
        model, _ = fit_local_model(X, bowl(X), None, refit=True)
        start = torch.full((2,), 0.7, **DOUBLE)
        box = torch.stack([start - 0.1, start + 0.1])
        found = least_confidence_bound(model, start, box, 1.0)
        assert torch.allclose(found, box[0], atol=1e-6)


@pytest.mark.default_device
class TestMinUCB:
    def test_a_move_lowers_the_bound(self):
        opt = MinUCB(unit_box(3), 1, 5, beta=2.0)
        for _ in range(3):
            opt.tell(bowl(opt.ask()))
            model, best = opt._model(), opt.history[-1].x
            with torch.no_grad():
                before, after = bound(model, torch.stack([best, opt.center]), 2.0)
            assert after <= before + 1e-9

    def test_the_centre_is_evaluated_next(self):
        opt = MinUCB(unit_box(3), 1, 5)
        opt.tell(bowl(opt.ask()))
        assert torch.equal(opt.ask()[0], opt.center)


@pytest.mark.default_device
class TestGradientTrustRegion:
    def test_the_region_follows_its_counters(self):
        opt = GradientTrustRegion(unit_box(3), 1, 9, length=0.2)
        best, lengths = torch.inf, [0.2]
        while not opt.done:
            values = bowl(opt.ask())
            opt.tell(values)
            improved = float(values.min()) < best
            best = min(best, float(values.min()))
            lengths.append(opt.length)
            if len(lengths) > 2:
                expected = min(lengths[-2] * (2.0 if improved else 0.5), 1.0)
                assert opt.length == max(expected, opt.min_length)
            moved = (opt.center - opt.history[-1].x).abs().max()
            assert moved <= opt.length / 2 + 1e-9
        assert max(lengths) > 0.2

    def test_sides_in_order(self):
        with pytest.raises(InvalidArgumentError, match="min_length"):
            GradientTrustRegion(unit_box(2), 1, 5, length=0.1, min_length=0.2)
