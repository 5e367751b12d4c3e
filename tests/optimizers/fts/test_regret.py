"""The terms of Theorem 1: by hand, and how they grow."""

import math

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.fts.regret import (
    RegretTerms,
    clipping_term,
    regret_terms,
    sharing_term,
)
from botorch_dp.optimizers.fts.weights import ExplorationWeights
from tests.optimizers.problems import DEVICE, DOUBLE

N = 6
WEIGHTS = ExplorationWeights(torch.arange(N, device=DEVICE) % 2, 2, hold=1, fall=2)


def terms(num_rounds, follow, **kwargs):
    defaults = {
        "weights": WEIGHTS,
        "follow": follow,
        "information_gain": math.log1p,
        "distances": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
        "rkhs_bound": 2.0,
        "approximation_error": 0.1,
        "num_features": 9,
        "clip_norm": 4.0,
        "noise_multiplier": 1.5,
        "sampling_rate": 0.5,
        "num_clipped": 2,
    }
    return regret_terms(num_rounds, **{**defaults, **kwargs})


class TestRegretTerms:
    def test_by_the_formulas(self):
        """A double loop over rounds and agents."""
        found = terms(4, lambda t: 0.5 / t)
        others = clipping = 0.0
        for t in range(1, 5):
            phi = WEIGHTS(t - 1)
            Delta = sum(
                0.1 * 2 * t**2 + 2 + 3 + n / 10 + math.sqrt(math.log1p(t))
                for n in range(N)
            )
            psi = 2 * float(phi.max()) / 0.5 * (Delta + 1.5 * 4 * 3)
            others += 0.5 / t * psi
            clipping += 2 * 0.5 / t * float(phi.sum(dim=0).sort().values[-2:].sum())
        assert found.own == pytest.approx((2 + 2) * math.log(5) * 2)
        assert found.others == pytest.approx(others)
        assert found.clipping == pytest.approx(clipping)
        assert found.total == pytest.approx(found.own + others + clipping)

    def test_the_condition_of_the_paper_is_not_enough(self):
        """With 1 - p_t = O(1/t^2) the second term grows as T, with 1/t^3 it stops."""
        square = [terms(T, lambda t: 0.5 / t**2).others for T in (20, 40, 80)]
        assert square[2] - square[1] == pytest.approx(
            2 * (square[1] - square[0]), rel=0.15
        )
        cube = [terms(T, lambda t: 0.5 / t**3).others for T in (20, 40, 80)]
        assert cube[2] - cube[0] < 0.05 * cube[0]

    def test_trust_at_once_is_not_bounded(self):
        """The experiments of the paper have 1 - p_1 = 1."""
        assert terms(3, lambda t: t**-0.5).total == math.inf

    def test_refuses(self):
        with pytest.raises(InvalidArgumentError, match="distances must be one number"):
            terms(3, lambda t: 0.5, distances=[0.0])
        with pytest.raises(InvalidArgumentError, match="num_rounds"):
            terms(0, lambda t: 0.5)


class TestParts:
    def test_no_noise(self):
        weights = torch.full((1, 4), 0.25, **DOUBLE)
        assert sharing_term(
            0.5,
            weights,
            8.0,
            clip_norm=3.0,
            noise_multiplier=0.0,
            sampling_rate=1.0,
            num_features=4,
        ) == pytest.approx(1.0)

    def test_clipping_is_at_most_the_number_of_regions(self):
        for number in (0, 1, 2, 5):
            assert clipping_term(1.0, WEIGHTS(number), N + 3) == pytest.approx(2.0)
        assert clipping_term(1.0, WEIGHTS(0), 0) == 0.0

    def test_total(self):
        assert RegretTerms(1.0, 2.0, 4.0).total == 7.0
