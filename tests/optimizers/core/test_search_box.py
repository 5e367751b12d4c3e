"""Search search_box: exact corners, round trips, derivatives."""

import pytest
import torch

from botorch_dp import RandomSearch
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core import search_box
from botorch_dp.optimizers.core.search_box import SearchBox
from tests.devices import DEVICE


def box(low, high, dtype=torch.float64):
    return torch.tensor([low, high], dtype=dtype, device=DEVICE)


class TestMaps:
    def test_round_trip(self, tkwargs, generator):
        bounds = box([1e-4, -3.0, 2.0], [10.0, 5.0, 7.0], tkwargs["dtype"])
        search_box = SearchBox(bounds, ("log", "linear", "identity"))
        U = torch.rand(50, 3, generator=generator, **tkwargs)
        U[:, 2] = 2.0 + 5.0 * U[:, 2]
        X = search_box.from_search(U)
        assert torch.equal(X, X.clamp(min=bounds[0], max=bounds[1]))
        assert X.dtype == tkwargs["dtype"]
        back = search_box.to_search(X)
        assert torch.allclose(back, U, atol=1e-5 if X.dtype == torch.float32 else 1e-12)

    def test_formulas(self):
        search_box = SearchBox(
            box([1e-2, -3.0, 2.0], [1e2, 5.0, 7.0]), ("log", "linear", "identity")
        )
        expected = box([0.0, 0.0, 2.0], [1.0, 1.0, 7.0])
        assert torch.allclose(search_box.box, expected)
        x = torch.tensor([1.0, 1.0, 3.5], dtype=torch.float64, device=DEVICE)
        found = search_box.to_search(x)
        assert torch.allclose(found, torch.tensor([0.5, 0.5, 3.5], device=DEVICE).to(x))

    def test_corners_stay_inside(self):
        search_box = SearchBox(box([1e-5, 0.1], [0.3, 0.7]), "log")
        corners = search_box.from_search(search_box.box)
        assert (corners[0] >= search_box.bounds[0]).all()
        assert (corners[1] <= search_box.bounds[1]).all()
        assert torch.allclose(corners, search_box.bounds, rtol=1e-12)

    def test_slope_is_the_derivative(self):
        search_box = SearchBox(
            box([1e-2, -3.0, 2.0], [1e2, 5.0, 7.0]), ("log", "linear", "identity")
        )
        U = torch.tensor([0.3, 0.4, 3.0], dtype=torch.float64, device=DEVICE)
        jacobian = torch.autograd.functional.jacobian(search_box.from_search, U)
        assert torch.allclose(jacobian, search_box.slope(U).diag())

    def test_a_huge_interval_beside_a_logarithm_does_not_overflow(self):
        search_box = SearchBox(box([1e-2, 0.0], [1.0, 1e6]), ("log", "linear"))
        U = torch.full(
            (2,), 0.5, dtype=torch.float64, device=DEVICE, requires_grad=True
        )
        search_box.from_search(U).sum().backward()
        assert U.grad.isfinite().all()


class TestBadInput:
    @pytest.mark.parametrize(
        "bounds",
        [
            [[0.0], [1.0]],
            torch.zeros(3, 2, device=DEVICE),
            torch.zeros(2, 0, device=DEVICE),
            torch.zeros(2, 2, dtype=torch.int64, device=DEVICE),
        ],
    )
    def test_not_bounds(self, bounds):
        with pytest.raises(InvalidArgumentError, match="bounds must be a 2 x d tensor"):
            SearchBox(bounds)

    @pytest.mark.parametrize("high", [-1.0, 0.0, float("nan"), float("inf")])
    def test_reversed_or_not_finite(self, high):
        with pytest.raises(InvalidArgumentError, match="lower bound below its upper"):
            SearchBox(box([0.0, 0.0], [1.0, high]))

    def test_transform(self):
        bounds = box([0.0, 1.0], [1.0, 2.0])
        with pytest.raises(InvalidArgumentError, match="one name or 2"):
            SearchBox(bounds, ("linear",))
        with pytest.raises(InvalidArgumentError, match="transform must be one of"):
            SearchBox(bounds, "logit")
        with pytest.raises(InvalidArgumentError, match="above 0 where transform is"):
            SearchBox(bounds, ("log", "linear"))

    def test_a_point_outside(self):
        search_box = SearchBox(box([0.0, 1.0], [1.0, 2.0]))
        outside = torch.tensor([0.5, 2.5], dtype=torch.float64, device=DEVICE)
        with pytest.raises(
            InvalidArgumentError, match="initial_x must lie within bounds"
        ):
            search_box.check_inside("initial_x", outside)


def test_earlier_names():
    with pytest.warns(DeprecationWarning, match="use .*SearchBox"):
        assert search_box.Coordinates is SearchBox
    with pytest.warns(DeprecationWarning, match=r"RandomSearch\.coordinates is"):
        assert RandomSearch(box([0.0], [1.0]), 10, 2).coordinates.dim == 1
