"""Clipping of a few rows: the same bound as clip_rows, and the same results."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import clip_rows, small_clipping
from botorch_dp.privacy.small_clipping import clip_few_rows
from tests.privacy.test_clipping import DEVICE, INF, NAN, exceeds


@pytest.mark.parametrize("norm", ["l1", "l2"])
class TestBound:
    @given(data=st.data(), bound=st.floats(1e-6, 1e6))
    def test_never_exceeded_in_double(self, norm, data, bound):
        row = data.draw(st.lists(st.floats(width=64), min_size=1, max_size=8))
        rows = torch.tensor([row], dtype=torch.float64, device=DEVICE)
        clipped = clip_few_rows(rows, bound, norm=norm)
        assert not exceeds(clipped[0].tolist(), bound, norm)

    @given(data=st.data(), bound=st.floats(1e-6, 1e6))
    def test_never_exceeded_in_float32(self, norm, data, bound):
        row = data.draw(st.lists(st.floats(width=32), min_size=1, max_size=8))
        rows = torch.tensor([row], dtype=torch.float32, device=DEVICE)
        clipped = clip_few_rows(rows, bound, norm=norm)
        assert not exceeds(clipped[0].tolist(), bound, norm)

    @pytest.mark.parametrize("shape", [(1,), (5,), (3, 7), (2, 3, 20), (300, 20)])
    def test_agrees_with_clip_rows(self, norm, shape, tkwargs, generator):
        rows = torch.randn(*shape, generator=generator, device=DEVICE).to(**tkwargs)
        for scale in (1e-3, 1.0, 1e3, 1e30):
            found = clip_few_rows(scale * rows, 1.5, norm=norm)
            expected = clip_rows(scale * rows, 1.5, norm=norm)
            assert (found.dtype, found.shape) == (rows.dtype, rows.shape)
            torch.testing.assert_close(found, expected, rtol=4e-7, atol=0.0)


class TestBrokenRecords:
    def test_non_finite_and_zero_rows_become_zero_silently(self, tkwargs):
        rows = torch.tensor(
            [[NAN, 1.0], [INF, 0.0], [-INF, NAN], [0.0, 0.0], [3.0, 4.0]], **tkwargs
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clipped = clip_few_rows(rows, 1.0)
            alone = torch.stack([clip_few_rows(row, 1.0) for row in rows])
        assert torch.equal(clipped, alone)
        assert torch.equal(clipped[:4], torch.zeros_like(clipped[:4]))
        assert torch.allclose(clipped[4], torch.tensor([0.6, 0.8], **tkwargs))

    def test_huge_finite_values_are_clipped_not_lost(self):
        rows = torch.tensor(
            [[1e308, 1e308], [1e-320, 0.0]], dtype=torch.float64, device=DEVICE
        )
        clipped = clip_few_rows(rows, 1.0)
        assert clipped[0].tolist() == pytest.approx([0.5**0.5] * 2)
        assert torch.equal(clipped[1], rows[1])

    def test_the_argument_is_not_changed(self, double):
        rows = torch.tensor([3.0, 4.0], **double, requires_grad=True)
        clipped = clip_few_rows(rows, 1.0)
        assert rows.tolist() == [3.0, 4.0]
        assert not clipped.requires_grad


@pytest.mark.cpu_only("only tensors on the CPU are clipped in numpy")
def test_many_numbers_are_left_to_torch(double, monkeypatch):
    used = []
    monkeypatch.setattr(small_clipping, "clip_rows", lambda *a, **k: used.append(1))
    clip_few_rows(torch.ones(4096, **double), 1.0)
    assert not used
    clip_few_rows(torch.ones(4097, **double), 1.0)
    assert used


@pytest.mark.cpu_only("accelerators have no such switch")
def test_denormal_numbers_that_count_as_zero(double):
    rows = torch.tensor([[0.0, 0.0], [1e-310, 0.0], [3.0, 4.0]], **double)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        clipped = clip_few_rows(rows, 1.0)
    finally:
        torch.set_flush_denormal(False)
    assert clipped.isfinite().all()
    assert clipped[:2].abs().max() <= 1e-310
    assert clipped[2].norm() <= 1.0


@pytest.mark.parametrize("bound", [0.0, -1.0, NAN, INF, "1", 1e-320])
def test_bad_bounds(bound, double):
    with pytest.raises(InvalidArgumentError, match="bound"):
        clip_few_rows(torch.ones(2, **double), bound)
