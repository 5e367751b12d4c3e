"""GIBO: DP-GIBO without noise, and a certificate that says so."""

import pytest
import torch

from botorch_dp import GDP, GIBO
from botorch_dp.exceptions import InvalidArgumentError
from tests.optimizers.problems import Quadratics, make, unit_box


class TestNotPrivate:
    def test_gibo_is_dp_gibo_without_noise(self):
        problem = Quadratics()
        kwargs = {"update": "sgd", "step_size": 0.3}
        exact = GIBO(unit_box(3), 200, 5, clip_norm=1.0, **kwargs)
        nearly = make(mu=1e9, **kwargs)
        x = exact.run(problem, progress=False).x
        assert torch.allclose(x, nearly.run(problem, progress=False).x, atol=1e-6)
        assert all(step.noise_std == 0.0 for step in exact.history)

    @pytest.mark.parametrize(
        "kwargs", [{"ledger": None}, {"secure": True}, {"guarantee": GDP(1.0)}]
    )
    def test_gibo_has_nothing_to_charge(self, kwargs):
        with pytest.raises(InvalidArgumentError, match="releases nothing"):
            GIBO(unit_box(2), 100, 4, **kwargs)

    def test_gibo_converges(self):
        problem = Quadratics()
        opt = GIBO(unit_box(3), 200, 40, update="sgd", step_size=0.5)
        x = opt.run(problem, progress=False).x
        assert torch.allclose(x, problem.records.mean(dim=0), atol=5e-3)

    def test_a_function_without_records(self):
        def f(X):
            return (X - 0.3).square().sum(dim=-1)

        opt, rows = GIBO(unit_box(3), 1, 4), GIBO(unit_box(3), 1, 4)
        x = opt.run(f, progress=False).x
        assert f(x) < f(torch.full_like(x, 0.5))
        assert torch.equal(rows.run(lambda X: f(X).unsqueeze(0), progress=False).x, x)
