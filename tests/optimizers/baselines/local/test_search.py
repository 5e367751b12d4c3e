"""What all local searches have: ask, tell, run, states, records, and no privacy."""

import pytest
import torch

from botorch_dp import FittedGIBO, GradientTrustRegion, MinUCB, MostProbableDescent
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from tests.optimizers.problems import DOUBLE, Quadratics, same_state, unit_box

KINDS = [FittedGIBO, GradientTrustRegion, MinUCB, MostProbableDescent]
pytestmark = pytest.mark.default_device


def bowl(X):
    return (X - 0.3).square().sum(dim=-1)


@pytest.mark.parametrize("kind", KINDS)
class TestEverySearch:
    def test_descends_and_says_that_it_is_not_private(self, kind, tmp_path):
        opt = kind(unit_box(3), 1, 4)
        result = opt.run(bowl, progress=False, checkpoint=tmp_path / "run")
        assert bowl(result.x) < bowl(torch.full((3,), 0.5, **DOUBLE)) * 0.8
        assert str(result.certificate).startswith("NOT PRIVATE")
        assert result.num_evaluations == 4 * 5

    def test_resumes_where_it_stopped(self, kind):
        whole, first = kind(unit_box(2), 1, 4), kind(unit_box(2), 1, 4)
        whole.run(bowl, progress=False)
        for _ in range(2):
            first.tell(bowl(first.ask()))
        second = kind(unit_box(2), 1, 4)
        second.load_state_dict(first.state_dict())
        second.run(bowl, progress=False)
        assert same_state(whole.state_dict(), second.state_dict())

    def test_a_state_of_another_search_is_refused(self, kind):
        opt = kind(unit_box(2), 1, 4)
        opt.tell(bowl(opt.ask()))
        with pytest.raises(OptimizerStateError):
            kind(unit_box(2), 1, 4, batch_size=5).load_state_dict(opt.state_dict())
        broken = {**opt.state_dict(), "center": torch.full((2,), 2.0, **DOUBLE)}
        with pytest.raises(OptimizerStateError, match="outside the box"):
            kind(unit_box(2), 1, 4).load_state_dict(broken)

    @pytest.mark.parametrize("bounds", [[[0, 1], [0, 1]], torch.zeros(3), None])
    def test_bad_bounds(self, kind, bounds):
        with pytest.raises(InvalidArgumentError, match="bounds must be"):
            kind(bounds, 1, 3)


class TestSearch:
    def test_a_mean_over_records(self):
        problem = Quadratics(n=50, d=2)
        opt = MinUCB(unit_box(2), 50, 4)
        x = opt.run(problem, progress=False).x
        assert torch.allclose(x, problem.records.mean(dim=0), atol=0.02)

    def test_coordinates(self):
        bounds = torch.tensor([[1e-4, -3.0], [1.0, 5.0]], **DOUBLE)

        def f(X):
            return (X[:, 0].log10() + 2).square() + (X[:, 1] - 1.5).square() / 4

        x = torch.tensor([0.1, 4.0], **DOUBLE)
        opt = MinUCB(bounds, 1, 6, transform=("log", "linear"), initial_x=x)
        assert torch.allclose(opt.ask()[0], x)
        found = opt.run(f, progress=False).x
        assert f(found.unsqueeze(0)) < 0.01

    def test_values_that_are_not_finite(self):
        def f(X):
            return torch.where(X[:, 0] > 0.55, torch.nan, bowl(X))

        result = MinUCB(unit_box(2), 1, 4).run(f, progress=False)
        assert bowl(result.x) < 0.01

    def test_the_window_limits_the_model(self):
        opt = MinUCB(unit_box(2), 1, 5, window=6)
        opt.run(bowl, progress=False)
        model = opt._model()
        assert len(model.train_targets) == 6
        distances = (opt._points - opt._center).norm(dim=-1).sort().values
        inputs = (model.train_inputs[0] - opt._center).norm(dim=-1)
        assert torch.allclose(inputs.sort().values, distances[:6])

    def test_single_precision(self):
        bounds = unit_box(2, dtype=torch.float32, device=DOUBLE["device"])
        opt = MinUCB(bounds, 1, 3)
        assert opt.run(bowl, progress=False).x.dtype == torch.float32

    def test_needs_a_cube(self):
        with pytest.raises(InvalidArgumentError, match="'linear' or 'log'"):
            MinUCB(unit_box(2), 1, 3, transform="identity")

    def test_needs_two_points_a_step(self):
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            MinUCB(unit_box(2), 1, 3, batch_size=1)
