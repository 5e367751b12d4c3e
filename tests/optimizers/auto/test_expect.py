"""expect: quantiles of measured cells near the sizes that are asked for."""

import json

import numpy as np
import pytest

from botorch_dp import GDP, ApproxDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.auto import expect as module
from botorch_dp.optimizers.auto.expect import _quantiles, expect, measured_cells


@pytest.fixture
def cells(monkeypatch):
    """Cells whose share is 100 / (n epsilon), four times in each of two dimensions."""

    def install(*rows):
        monkeypatch.setattr(module, "measured_cells", lambda: rows)

    rows = [(s, d, 100 / s) for s in (100.0, 1000.0, 1e4) for d in (2, 16)] * 4
    install(*rows)
    return install


class TestQuantiles:
    def test_equal_weights(self):
        values = [0.5, 0.1, 0.4, 0.2, 0.3]
        expected = np.quantile(values, [0.2, 0.5, 0.9], method="inverted_cdf")
        assert _quantiles(values, [2.0] * 5, [0.2, 0.5, 0.9]) == list(expected)

    def test_weights(self):
        values, counts = [3.0, 1.0, 2.0], [1, 5, 4]
        repeated = np.repeat(values, counts)
        for level in (0.05, 0.5, 0.51, 0.89, 0.95):
            expected = float(np.quantile(repeated, level, method="inverted_cdf"))
            assert _quantiles(values, counts, [level]) == [expected]


class TestExpect:
    def test_reads_off_the_cells_of_this_size(self, cells):
        for signal in (100, 1000, 10_000):
            outlook = expect(signal, 2, ApproxDP(1.0, 1e-5)).outlook
            assert outlook.median == pytest.approx(100 / signal)
            assert outlook.is_measured

    def test_records_and_epsilon_are_worth_the_same(self, cells):
        few = expect(100, 2, ApproxDP(10.0, 1e-5)).outlook
        many = expect(10_000, 2, ApproxDP(0.1, 1e-5)).outlook
        assert (few.median, few.low, few.high) == (many.median, many.low, many.high)

    def test_says_where_nothing_was_measured(self, cells):
        for n, d in ((3, 2), (10**9, 2), (1000, 2000)):
            outlook = expect(n, d, ApproxDP(1.0, 1e-5)).outlook
            assert not outlook.is_measured
            assert "beyond what was measured" in str(outlook)
            assert 0 <= outlook.low <= outlook.median <= outlook.high

    def test_other_guarantees(self, cells):
        assert expect(1000, 2, PureDP(1.0)).outlook.epsilon == 1.0
        expected = GDP(0.5).epsilon(1e-5)
        assert expect(1000, 2, GDP(0.5)).outlook.epsilon == pytest.approx(expected)

    def test_prints_a_row_for_each_epsilon(self, cells):
        text = str(expect(1000, 2, ApproxDP(0.7, 1e-5)))
        assert "1,000 records and 2 parameters" in text
        assert text.count("%") > 12
        assert ">       0.7" in text

    def test_bad_arguments(self):
        for n, d in ((0, 2), (10, 0), (1.5, 2)):
            with pytest.raises(InvalidArgumentError):
                expect(n, d, ApproxDP(1.0, 1e-5))
        with pytest.raises(InvalidArgumentError, match="guarantee"):
            expect(10, 2, 1.0)


def test_shipped_cells():
    cells = measured_cells()
    assert len(cells) > 50
    assert all(signal > 0 and dim >= 1 and left >= 0 for signal, dim, left in cells)
    text = module.resources.files(module.__package__).joinpath("measured.json")
    assert json.loads(text.read_text("utf-8")) == [list(cell) for cell in cells]
