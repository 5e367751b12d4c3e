"""Private gradient descent: clipping, noise and budget."""

import math

import pytest
import torch

from botorch_dp import GDP, RDP, ApproxDP
from botorch_dp.privacy import SecureNoise, clip_rows
from tests.optimizers.gibo.test_dp_gibo import released_mean
from tests.optimizers.problems import Quadratics, make


def test_clipping_is_that_of_the_privacy_core():
    problem = Quadratics(n=30)
    opt = make(n=30, clip_norm=0.1)
    X = opt.ask()
    expected = clip_rows(problem(X) @ opt._weights.mT, 0.1).mean(dim=0)
    assert torch.allclose(released_mean(opt, problem(X)), expected, atol=1e-12)


class TestStep:
    def test_noise(self):
        assert math.isclose(make(num_steps=25).noise_std, 2 * 5 / 200)
        approx = ApproxDP(epsilon=1.0, delta=1e-6)
        opt = make(guarantee=approx, num_steps=4)
        assert math.isclose(opt.noise_std, 2 * 2 / (200 * approx.to_gdp().mu))
        opt = make(guarantee=RDP(order=8.0, epsilon=0.5), num_steps=4)
        assert math.isclose(opt.noise_std, 0.01 * 2 * math.sqrt(8.0 / (2 * 0.5)))

    @pytest.mark.parametrize(
        "guarantee", [GDP(0.7), ApproxDP(1.0, 1e-5), RDP(8.0, 0.5)]
    )
    def test_a_whole_run_spends_its_budget_exactly(self, guarantee):
        opt = make(guarantee=guarantee)
        result = opt.run(Quadratics(), progress=False)
        spent = opt.ledger.accountant().spent_of(guarantee)
        assert opt.ledger.accountant().within(guarantee)
        limit = getattr(guarantee, "mu", None) or guarantee.epsilon
        assert math.isclose(spent.amount, limit, rel_tol=1e-6)
        assert result.certificate.num_releases == 5

    def test_secure_noise_fits_its_budget(self):
        pytest.importorskip("opendp")
        guarantee = ApproxDP(1.0, 1e-5)
        opt = make(guarantee=guarantee, secure=True, generator=None)
        result = opt.run(Quadratics(), progress=False)
        assert opt.ledger.accountant().within(guarantee)
        assert result.certificate.noise == ("secure",)
        assert opt.noise_std > make(guarantee=guarantee).noise_std

    @pytest.mark.parametrize("n", [200, 20_000])
    def test_secure_noise_on_a_coarse_grid_fits_its_budget(self, n):
        pytest.importorskip("opendp")
        guarantee, grid = ApproxDP(1.0, 1e-5), SecureNoise(grid_exponent=-24)
        opt = make(n=n, guarantee=guarantee, secure=grid, generator=None, num_steps=4)
        opt.run(Quadratics(n=n), progress=False)
        assert opt.ledger.accountant().within(guarantee)

    def test_stays_in_the_box(self):
        opt = make(clip_norm=1.0, step_size=5.0, n=20, mu=0.05, num_steps=8)
        problem = Quadratics(n=20)
        while not opt.done:
            X = opt.ask()
            assert ((X >= 0) & (X <= 1)).all()
            opt.tell(problem(X))
            assert ((opt.x >= 0) & (opt.x <= 1)).all()
