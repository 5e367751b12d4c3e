"""Clipping: the bound holds for every record, whatever its values."""

import fractions
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    clip_rows,
    clipped_row_sum,
    mallows_weights,
    private_clipping_diagnostics,
)
from tests.devices import DEVICE

NAN, INF = math.nan, math.inf


def exact_norm(row, norm):
    """The norm of a row of floats in exact rational arithmetic (squared for L2)."""
    values = [fractions.Fraction(value) for value in row]
    if norm == "l1":
        return sum(abs(value) for value in values)
    return sum(value**2 for value in values)


def exceeds(row, bound, norm):
    limit = fractions.Fraction(bound)
    return exact_norm(row, norm) > (limit if norm == "l1" else limit**2)


any_float = st.floats(width=64)
any_float32 = st.floats(width=32)


@pytest.mark.parametrize("norm", ["l1", "l2"])
class TestBound:
    @given(data=st.data(), bound=st.floats(1e-6, 1e6))
    def test_never_exceeded_in_double(self, norm, data, bound):
        row = data.draw(st.lists(any_float, min_size=1, max_size=8))
        rows = torch.tensor([row], dtype=torch.float64, device=DEVICE)
        assert not exceeds(clip_rows(rows, bound, norm=norm)[0].tolist(), bound, norm)

    @given(data=st.data(), bound=st.floats(1e-6, 1e6))
    def test_never_exceeded_in_float32(self, norm, data, bound):
        row = data.draw(st.lists(any_float32, min_size=1, max_size=8))
        rows = torch.tensor([row], dtype=torch.float32, device=DEVICE)
        assert not exceeds(clip_rows(rows, bound, norm=norm)[0].tolist(), bound, norm)

    def test_never_exceeded_in_many_dimensions(self, norm, tkwargs, generator):
        rows = torch.randn(20, 3001, generator=generator, device=DEVICE).to(**tkwargs)
        clipped = clip_rows(rows, 0.1, norm=norm)
        assert not any(exceeds(row, 0.1, norm) for row in clipped.tolist())

    def test_naive_float32_clipping_does_exceed_it(self, norm, generator):
        # The power of the tests above: dividing by the norm is not enough.
        rows = torch.randn(200, 50, generator=generator, device=DEVICE)
        order = 1 if norm == "l1" else 2
        naive = rows * (0.1 / rows.norm(p=order, dim=-1, keepdim=True))
        assert any(exceeds(row, 0.1, norm) for row in naive.tolist())

    def test_clipped_rows_keep_direction_and_reach_the_bound(
        self, norm, tkwargs, generator
    ):
        rows = 100 * torch.randn(50, 4, generator=generator, device=DEVICE).to(
            **tkwargs
        )
        clipped = clip_rows(rows, 0.5, norm=norm)
        order = 1 if norm == "l1" else 2
        norms = clipped.double().norm(p=order, dim=-1)
        assert torch.allclose(norms, torch.full_like(norms, 0.5), rtol=1e-5)
        assert torch.allclose(
            clipped.double() / 0.5,
            torch.nn.functional.normalize(rows.double(), p=order, dim=-1),
            rtol=1e-5,
        )

    def test_rows_within_are_unchanged_to_the_bit(self, norm, tkwargs, generator):
        rows = torch.randn(50, 4, generator=generator, device=DEVICE).to(**tkwargs)
        assert torch.equal(clip_rows(rows, 1e3, norm=norm), rows)


class TestBrokenRecords:
    def test_non_finite_and_zero_rows_become_zero_silently(self, tkwargs):
        rows = torch.tensor(
            [[NAN, 1.0], [INF, 0.0], [-INF, NAN], [0.0, 0.0], [3.0, 4.0]], **tkwargs
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clipped = clip_rows(rows, 1.0)
        assert torch.equal(clipped[:4], torch.zeros_like(clipped[:4]))
        assert torch.allclose(clipped[4], torch.tensor([0.6, 0.8], **tkwargs))

    def test_one_broken_record_does_not_touch_the_others(self, tkwargs, generator):
        rows = torch.randn(2, 5, 3, generator=generator, device=DEVICE).to(**tkwargs)
        broken = rows.clone()
        broken[1, 2] = NAN
        difference = clip_rows(rows, 0.5) - clip_rows(broken, 0.5)
        changed = difference.abs().sum(dim=-1) != 0
        assert changed.nonzero().tolist() == [[1, 2]]

    def test_huge_finite_values_are_clipped_not_lost(self):
        rows = torch.tensor(
            [[1e300, 1e300], [1e-320, 0.0]], dtype=torch.float64, device=DEVICE
        )
        clipped = clip_rows(rows, 1.0)
        assert clipped[0].tolist() == pytest.approx([0.5**0.5] * 2)
        assert torch.equal(clipped[1], rows[1])

    def test_replacing_a_record_moves_the_mean_by_at_most_2b_over_n(self, double):
        rows = torch.ones(10, 3, **double)
        for value in (1e30, -1e30, NAN, INF, 0.0):
            other = rows.clone()
            other[4] = value
            shift = clip_rows(rows, 0.7).mean(0) - clip_rows(other, 0.7).mean(0)
            assert shift.norm() <= 2 * 0.7 / 10


HOSTILE = {
    "huge": [1e308, -1e308, 1.5e308],
    "huge in single": [3e38, -3e38, 1e38],
    "huge and tiny": [1e308, 1e-308, 5e-324],
    "overflowing squares": [1e200, 1e200, 1e180],
    "underflowing squares": [1e-200, 1e-200, 3e-200],
    "denormal": [5e-324, 1e-320, -5e-324],
    "zero": [0.0, -0.0, 0.0],
    "at the bound": [0.6, 0.0, 0.8],
    "one ulp above": [0.6, 0.0, math.nextafter(0.8, 1.0)],
    "one ulp below": [0.6, 0.0, math.nextafter(0.8, 0.0)],
    "one entry at the bound": [1.0, 0.0, 0.0],
    "equal": [1.0, 1.0, 1.0],
    "nan": [NAN, 1.0, 1.0],
    "inf": [1.0, INF, -1.0],
    "both": [-INF, NAN, 5e-324],
}


def as_float(row, dtype):
    return torch.tensor(row, dtype=dtype, device=DEVICE)


class TestSum:
    """The sum of clipped rows: what each row adds, in exact arithmetic."""

    @pytest.mark.parametrize("norm", ["l1", "l2"])
    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("bound", [1e-30, 0.37, 1.0, 1e30])
    def test_a_hostile_row(self, name, norm, bound, tkwargs):
        row = as_float(HOSTILE[name], tkwargs["dtype"])
        added = clipped_row_sum(row.unsqueeze(0), bound, norm=norm)
        assert added.dtype == torch.float64
        assert not exceeds(added.tolist(), bound, norm)
        if not row.isfinite().all():
            assert not added.any()
        else:
            # Clipped to the bound, in its own direction, in 400 bits.
            values = [fractions.Fraction(value) for value in row.tolist()]
            length = exact_norm(row.tolist(), norm)
            if norm == "l2":
                length = root(length)
            factor = fractions.Fraction(bound) / length if length > bound else 1
            for value, found in zip(values, added.tolist(), strict=True):
                error = abs(fractions.Fraction(found) - value * factor)
                assert error <= abs(value * factor) * 1e-14 + 1e-320

    @given(
        data=st.data(), bound=st.floats(1e-6, 1e6), norm=st.sampled_from(["l1", "l2"])
    )
    def test_never_more_than_the_bound_in_double(self, data, bound, norm):
        row = data.draw(st.lists(any_float, min_size=1, max_size=8))
        rows = torch.tensor([row], dtype=torch.float64, device=DEVICE)
        added = clipped_row_sum(rows, bound, norm=norm)
        assert not exceeds(added.tolist(), bound, norm)

    @given(data=st.data(), bound=st.floats(1e-6, 1e6))
    def test_never_more_than_the_bound_in_float32(self, data, bound):
        row = data.draw(st.lists(any_float32, min_size=1, max_size=8))
        rows = torch.tensor([row], dtype=torch.float32, device=DEVICE)
        assert not exceeds(clipped_row_sum(rows, bound).tolist(), bound, "l2")

    @pytest.mark.parametrize("norm", ["l1", "l2"])
    def test_never_more_than_the_bound_in_many_dimensions(
        self, norm, tkwargs, generator
    ):
        rows = torch.randn(20, 3001, generator=generator, device=DEVICE).to(**tkwargs)
        for row in rows:
            added = clipped_row_sum(row.unsqueeze(0), 0.1, norm=norm)
            assert not exceeds(added.tolist(), 0.1, norm)

    @pytest.mark.parametrize("norm", ["l1", "l2"])
    def test_the_sum_of_clip_rows(self, norm, tkwargs, generator):
        rows = torch.randn(2, 50, 4, generator=generator, device=DEVICE).to(**tkwargs)
        rows[0, 3], rows[1, 5, 2] = NAN, INF
        expected = clip_rows(rows, 0.9, norm=norm).double().sum(dim=-2)
        tolerance = 1e-5 if tkwargs["dtype"] == torch.float32 else 1e-12
        for layout in (rows, rows.mT.contiguous().mT):
            found = clipped_row_sum(layout, 0.9, norm=norm)
            assert torch.allclose(found, expected, atol=tolerance)
        assert rows[0, 3].isnan().all()  # the input is left alone

    def test_a_row_moves_the_sum_by_the_sensitivity_at_most(self, tkwargs, generator):
        # Replaced by any other row 2 B, and B if it is zeroed; exactly, but for the
        # rounding of the sum, which mean_sensitivity has room for.
        n, bound = 200, 0.37
        rows = torch.randn(n, 3, generator=generator, device=DEVICE).to(**tkwargs)
        sums = {}
        for name, row in HOSTILE.items():
            rows[17] = as_float(row, tkwargs["dtype"])
            sums[name] = clipped_row_sum(rows, bound)
        for name, total in sums.items():
            room = 1 + n * 2.0**-44
            assert (total - sums["zero"]).norm() <= bound * room
            for other in sums.values():
                assert (total - other).norm() <= 2 * bound * room
            if name in ("nan", "inf", "both"):
                assert torch.equal(total, sums["zero"])

    def test_silently(self, double):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clipped_row_sum(torch.tensor([[NAN, 1.0], [INF, 2.0]], **double), 1.0)

    @pytest.mark.parametrize(
        ("value", "match"),
        [
            (torch.ones(2, 2, dtype=torch.int64, device=DEVICE), "int64"),
            (torch.ones(2, device=DEVICE), r"at least 2 dimension.*\(2,\)"),
            (torch.ones(0, 2, device=DEVICE), r"empty.*\(0, 2\)"),
            ([[1.0]], "torch.Tensor.*list"),
        ],
    )
    def test_bad_rows(self, value, match):
        with pytest.raises(InvalidArgumentError, match=f"private_rows.*{match}"):
            clipped_row_sum(value, 1.0)

    def test_bad_arguments(self, double):
        with pytest.raises(InvalidArgumentError, match="bound"):
            clipped_row_sum(torch.ones(2, 2, **double), 0.0)
        with pytest.raises(InvalidArgumentError, match="norm"):
            clipped_row_sum(torch.ones(2, 2, **double), 1.0, norm="linf")


def root(square):
    """The square root of a fraction, to 400 bits."""
    if not square:
        return square
    shift = 2 * (1500 + square.denominator.bit_length())
    return fractions.Fraction(
        math.isqrt((square.numerator << shift) // square.denominator), 1 << shift // 2
    )


class TestMallows:
    def test_weights(self, tkwargs):
        rows = torch.tensor([[3.0, 4.0], [0.1, 0.0], [0.0, 0.0], [NAN, 1.0]], **tkwargs)
        weights = mallows_weights(rows, 2.0)
        assert weights.dtype == tkwargs["dtype"]
        assert weights.tolist() == pytest.approx([2 / 25, 1.0, 1.0, 0.0])

    def test_extreme_rows(self, double):
        rows = torch.tensor([[1e200, 0.0], [1e-200, 0.0], [INF, 0.0]], **double)
        assert mallows_weights(rows, 1.0).tolist() == [0.0, 1.0, 0.0]

    @given(values=st.lists(any_float, min_size=1, max_size=5), c=st.floats(1e-3, 1e3))
    def test_between_zero_and_one_and_bounding(self, values, c):
        rows = torch.tensor([values], dtype=torch.float64, device=DEVICE)
        weight = float(mallows_weights(rows, c))
        assert 0.0 <= weight <= 1.0
        if math.isfinite(norm := math.sqrt(sum(min(v * v, 1e300) for v in values))):
            assert weight * min(norm, 1e100) ** 2 <= c * (1 + 1e-9) or weight == 1.0


class TestDiagnostics:
    def test_counts(self, tkwargs):
        rows = torch.tensor([[3.0, 4.0], [0.1, 0.0], [NAN, 1.0]], **tkwargs)
        found = private_clipping_diagnostics(rows, 1.0)
        assert (found.num_rows, found.num_clipped, found.num_non_finite) == (3, 1, 1)
        assert found.median_norm == pytest.approx(0.1)

    def test_nothing_finite(self, double):
        found = private_clipping_diagnostics(torch.full((2, 2), NAN, **double), 1.0)
        assert (found.num_non_finite, found.median_norm) == (2, 0.0)


class TestBadInput:
    @pytest.mark.parametrize("bound", [0.0, -1.0, NAN, INF, "1", 1e-320])
    def test_bound(self, bound, tkwargs):
        with pytest.raises(InvalidArgumentError, match="bound"):
            clip_rows(torch.ones(2, 2, **tkwargs), bound)

    def test_bound_beyond_float32(self):
        with pytest.raises(InvalidArgumentError, match=r"bound.*1e\+39"):
            clip_rows(torch.ones(2, 2, device=DEVICE), 1e39)

    def test_norm(self, double):
        with pytest.raises(InvalidArgumentError, match=r"norm.*'l2'.*'linf'"):
            clip_rows(torch.ones(2, 2, **double), 1.0, norm="linf")

    @pytest.mark.parametrize("function", [clip_rows, mallows_weights])
    @pytest.mark.parametrize(
        ("value", "match"),
        [
            (torch.ones(2, 2, dtype=torch.int64, device=DEVICE), "int64"),
            (torch.ones(2, 2, dtype=torch.float16, device=DEVICE), "float16"),
            (torch.ones(0, 2, device=DEVICE), r"empty.*\(0, 2\)"),
            (torch.tensor(1.0, device=DEVICE), r"at least 1 dimension.*\(\)"),
            ([[1.0]], "torch.Tensor.*list"),
        ],
    )
    def test_rows(self, function, value, match):
        with pytest.raises(InvalidArgumentError, match=f"private_rows.*{match}"):
            function(value, 1.0)
