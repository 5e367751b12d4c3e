"""Regions of equal volume, and domains."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.fts.regions import Regions, SearchDomain
from tests.optimizers.problems import DOUBLE, seeded


class TestRegions:
    @pytest.mark.parametrize(
        ("dim", "count", "cuts"),
        [
            (1, 4, [4]),
            (2, 4, [2, 2]),
            (2, 2, [2, 1]),
            (3, 12, [3, 2, 2]),
            (2, 1, [1, 1]),
        ],
    )
    def test_cuts(self, dim, count, cuts):
        assert Regions(dim, count).cuts == cuts

    @pytest.mark.parametrize(("dim", "count"), [(1, 3), (2, 4), (3, 6)])
    def test_boxes_are_what_index_says(self, dim, count):
        regions = Regions(dim, count)
        X = torch.rand(4000, dim, generator=seeded(1), **DOUBLE)
        index = regions.index(X)
        for region in range(count):
            lower, upper = (torch.tensor(c, **DOUBLE) for c in regions.box(region))
            inside = ((lower <= X) & (upper > X)).all(dim=-1)
            assert torch.equal(inside, index == region)
            assert float((upper - lower).prod()) == pytest.approx(1 / count)

    def test_corners(self):
        regions = Regions(2, 4)
        X = torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1e-12, 2.0]], **DOUBLE)
        assert regions.index(X).tolist() == [0, 3, 1]


class TestSearchDomain:
    def test_scales_there_and_back(self):
        bounds = torch.tensor([[-1.0, 10.0], [1.0, 20.0]], **DOUBLE)
        domain = SearchDomain(bounds)
        X = torch.rand(9, 2, generator=seeded(2), **DOUBLE)
        assert torch.allclose(domain.to_unit(domain.from_unit(X)), X)
        assert (domain.from_unit(X) >= bounds[0]).all()

    def test_refuses(self):
        bounds = torch.tensor([[0.0], [1.0]], **DOUBLE)
        with pytest.raises(InvalidArgumentError, match="bounds must be"):
            SearchDomain(bounds.flip(0))
        with pytest.raises(InvalidArgumentError, match=r"candidates must be .* C x 1"):
            SearchDomain(bounds, torch.zeros(3, 2, **DOUBLE))
        with pytest.raises(
            InvalidArgumentError, match="candidates must lie within bounds"
        ):
            SearchDomain(bounds, torch.full((3, 1), 2.0, **DOUBLE))
