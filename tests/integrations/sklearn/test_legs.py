"""The legs of a search: their seeds, their files, and what is said at the end."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from botorch_dp import GDP
from botorch_dp.exceptions import LostReleaseWarning, SearchStoppedWarning
from botorch_dp.integrations.sklearn.legs import (
    Leg,
    fresh_seed,
    part_of,
    seeded,
    warn_of_end,
)


def test_seeds_are_new_after_every_charge():
    seeds = {fresh_seed(seed, count) for seed in range(50) for count in range(50)}
    assert len(seeds) == 2_500
    assert not seeds & set(range(50))  # a fit that is new takes the seed itself
    assert fresh_seed(3, 4) == fresh_seed(3, 4)
    draws = {
        torch.randn(1, generator=seeded(seed), device="cpu").item() for seed in seeds
    }
    assert len(draws) > 2_490  # float32 has few values


def test_files():
    assert part_of(None, 3) is None
    assert part_of("file", 0) == "file"
    assert part_of("file", 2) == "file.2"


def test_first():
    assert Leg(GDP(1.0)).is_first
    assert not Leg(GDP(1.0), number=1).is_first


class TestEnd:
    @pytest.mark.parametrize("stopped", [None, "error", "interrupted"])
    def test_says_nothing(self, stopped):
        """Of what raises anyway."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_end(SimpleNamespace(num_released=1, num_lost=0), stopped)

    @pytest.mark.parametrize("stopped", ["timeout", "max_fits"])
    def test_stopped(self, stopped):
        with pytest.warns(SearchStoppedWarning, match=rf"{stopped}\), after 2 release"):
            warn_of_end(SimpleNamespace(num_released=2, num_lost=0), stopped)
        with pytest.warns(SearchStoppedWarning, match="here the starting parameters"):
            warn_of_end(SimpleNamespace(num_released=0, num_lost=0), stopped)

    def test_lost(self):
        with pytest.warns(LostReleaseWarning, match=r"3 release\(s\) were paid for"):
            warn_of_end(SimpleNamespace(num_released=2, num_lost=3), None)
