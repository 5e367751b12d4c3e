"""The bound of Algorithm 3: by hand, and attained by linear losses."""

import itertools

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from tests.optimizers.release.kusner.bounds import LIPSCHITZ


class TestByHand:
    def test_algorithm_3(self):
        # L (1 / lmin - 1 / lmax) = 2 (2 - 1 / 4).
        bounded = LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=5.0)
        assert bounded.search_term == pytest.approx(3.5)
        assert bounded.record_term == pytest.approx(5 / 50)
        assert bounded.sensitivity == pytest.approx(3.6)
        assert not bounded.is_trivial
        margin = LipschitzValueSensitivity(**LIPSCHITZ, zero_spread=0.0)
        assert margin.record_term == pytest.approx(2 * 2 / 0.5 / 50)
        assert not margin.is_trivial
        spread = LipschitzValueSensitivity(**LIPSCHITZ, zero_spread=1.0)
        assert spread.record_term == pytest.approx(9 / 50)
        both = LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=100.0, zero_spread=0.0)
        assert both.record_term == margin.record_term
        printed = LipschitzValueSensitivity(
            **LIPSCHITZ, loss_bound=100.0, constants="icml2015"
        )
        assert printed.record_term == pytest.approx(2 / 0.5 / 50)

    def test_algorithm_3_is_never_worse_than_trivial(self):
        trivial = LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=1.0)
        assert trivial.sensitivity == trivial.loss_bound == 1.0
        assert trivial.is_trivial
        printed = LipschitzValueSensitivity(
            **LIPSCHITZ, loss_bound=1.0, constants="icml2015"
        )
        assert printed.sensitivity == pytest.approx(3.52)
        assert printed.is_trivial

    def test_algorithm_3_at_the_documented_range(self):
        # "at [0.1, 1], L = 1 it is 9", whatever the number of records.
        release = LipschitzValueSensitivity(
            lipschitz=1.0,
            min_regularization=0.1,
            max_regularization=1.0,
            num_records=10**9,
            zero_spread=0.0,
        )
        assert release.sensitivity == pytest.approx(9.0)


class TestAlgorithm3:
    """A linear training loss -w.u and a linear validation loss L w.z, |z| <= 1.

    Then w = u / lambda, the longest that a 1-Lipschitz loss allows, and the change of a
    score is known exactly.
    """

    def score(self, regularization, records, lipschitz):
        return -lipschitz * sum(records) / len(records) / regularization

    @pytest.mark.parametrize("m", [1, 2, 10])
    def test_record_term_is_attained(self, m):
        V, neighbour = [1.0] * m, [1.0] * (m - 1) + [-1.0]
        change = abs(self.score(0.5, V, 2.0) - self.score(0.5, neighbour, 2.0))
        setting = {**LIPSCHITZ, "num_records": m}
        release = LipschitzValueSensitivity(**setting, zero_spread=0.0)
        assert change == pytest.approx(release.record_term)
        # As printed it is half of that.
        printed = LipschitzValueSensitivity(**setting, constants="icml2015")
        assert change == pytest.approx(2 * printed.record_term)

    def test_search_term_is_attained(self):
        V = [1.0] * 50
        change = abs(self.score(0.5, V, 2.0) - self.score(4.0, V, 2.0))
        release = LipschitzValueSensitivity(**LIPSCHITZ, zero_spread=0.0)
        assert change == pytest.approx(release.search_term)

    @pytest.mark.parametrize("m", [1, 2, 3, 10])
    def test_total(self, m):
        release = LipschitzValueSensitivity(
            **{**LIPSCHITZ, "num_records": m}, zero_spread=0.0
        )
        grid = [0.5, 0.7, 1.0, 2.0, 4.0]
        for z, other in itertools.product((-1.0, 0.0, 1.0), repeat=2):
            for rest in ([1.0], [-1.0], [0.5]):
                V, neighbour = rest * (m - 1) + [z], rest * (m - 1) + [other]
                for a, b in itertools.product(grid, repeat=2):
                    change = self.score(a, V, 2.0) - self.score(b, neighbour, 2.0)
                    assert abs(change) <= release.sensitivity + 1e-12

    def test_losses_that_differ_at_zero(self):
        """g(w, (x, y)) = |w x - y|: at w = 0 it is |y|, up to 3 apart.

        Without stating that spread, 2 L / (m lmin) would be too small.
        """
        setting = {
            "lipschitz": 1.0,
            "min_regularization": 10.0,
            "max_regularization": 10.0,
            "num_records": 1,
        }
        w = 1 / 10
        change = abs(abs(w * -1 - 3) - abs(w * 0 - 0))
        margin = LipschitzValueSensitivity(**setting, zero_spread=0.0)
        assert change > margin.sensitivity
        spread = LipschitzValueSensitivity(**setting, zero_spread=3.0)
        assert change <= spread.sensitivity
        bounded = LipschitzValueSensitivity(**setting, loss_bound=3.1)
        assert change <= bounded.sensitivity

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"lipschitz": 0.0}, "lipschitz must"),
            ({"min_regularization": 0.0}, "min_regularization must"),
            ({"max_regularization": 0.4}, "max_regularization must .* 0.4 and 0.5"),
            ({"num_records": 0}, "num_records must"),
            ({"loss_bound": 0.0}, "loss_bound must"),
            ({"loss_bound": None}, "loss_bound or zero_spread must be given"),
            ({"zero_spread": -1.0}, "zero_spread must"),
            ({"constants": "workshop"}, "has no Algorithm 3"),
            ({"constants": "printed"}, "constants must be one of"),
        ],
    )
    def test_bad_arguments(self, change, match):
        with pytest.raises(InvalidArgumentError, match=match):
            LipschitzValueSensitivity(**{**LIPSCHITZ, "loss_bound": 1.0, **change})
