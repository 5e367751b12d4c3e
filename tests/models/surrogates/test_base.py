"""What all surrogates inherit, with one that has a single point."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientSurrogate
from tests.devices import DEVICE


class OnePoint(GradientSurrogate):
    """Takes the loss at x itself for each partial derivative."""

    def __init__(self, initial_x):
        super().__init__(initial_x)
        self._move(self._flat(initial_x))

    @property
    def points(self):
        return self._shaped(self._x).unsqueeze(-2)

    @property
    def num_points(self):
        return torch.ones(self._shape[:-1])

    def settings(self):
        return {}

    def _move(self, x):
        self._x = x
        self._weights = self._shaped(torch.ones_like(x).unsqueeze(-1))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
class TestShapes:
    def test_results_have_the_shape_and_dtype_of_x(self, batch, tkwargs):
        surrogate = OnePoint(torch.zeros(*batch, 2, **tkwargs))
        assert surrogate.dim == 2
        assert surrogate._x.dtype == torch.float64
        surrogate.update(torch.ones(*batch, 2, **tkwargs))
        assert torch.equal(surrogate.points, torch.ones(*batch, 1, 2, **tkwargs))
        gradient = surrogate.gradient(torch.full((*batch, 1), 7.0, **tkwargs))
        assert torch.equal(gradient, torch.full((*batch, 2), 7.0, **tkwargs))

    def test_x_is_copied(self, batch, double):
        x = torch.zeros(*batch, 2, **double)
        surrogate = OnePoint(x)
        x += 1.0
        assert (surrogate.points == 0).all()


class TestBadArguments:
    @pytest.mark.parametrize(
        ("x", "message"),
        [
            ([0.0], r"initial_x must be a ... x p tensor .* got \[0.0\]"),
            (torch.zeros((), device=DEVICE), r"initial_x .* \.\.\. x p .* shape \(\)"),
            (torch.zeros(2, device=DEVICE).long(), "initial_x .* got torch.int64"),
            (
                torch.zeros(0, 2, device=DEVICE),
                r"initial_x must not be empty.*\(0, 2",
            ),
        ],
        ids=["list", "number", "integers", "empty"],
    )
    def test_initial_x(self, x, message):
        with pytest.raises(InvalidArgumentError, match=message):
            OnePoint(x)

    def test_update(self, double):
        surrogate = OnePoint(torch.zeros(3, 2, **double))
        for bad, message in [
            (torch.zeros(2, 2, **double), r"x must be .* shape 3 x 2 .* \(2, 2\)"),
            (torch.zeros(3, 2, **double).float(), "x must be .* got torch.float32"),
            ([1.0], "x must be .* got a list"),
        ]:
            with pytest.raises(InvalidArgumentError, match=message):
                surrogate.update(bad)
        assert (surrogate.points == 0).all()

    def test_losses(self, double):
        surrogate = OnePoint(torch.zeros(3, 2, **double))
        with pytest.raises(
            InvalidArgumentError, match=r"losses .* \(3, 1\), got .*\(3,\)"
        ):
            surrogate.gradient(torch.zeros(3, **double))

    def test_state_of_another(self, double):
        surrogate = OnePoint(torch.zeros(2, **double))
        surrogate.load_state_dict(surrogate.state_dict())
        with pytest.raises(
            InvalidArgumentError, match=r"empty for OnePoint, got \['x'\]"
        ):
            surrogate.load_state_dict({"x": torch.zeros(2, **double)})


def test_private_losses_are_not_looked_at(double):
    surrogate = OnePoint(torch.zeros(2, **double))
    assert surrogate.gradient(torch.full((1,), torch.nan, **double)).isnan().all()
