"""The least concave function above points, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.privacy.hulls import upper_hull

points = st.lists(
    st.tuples(st.integers(0, 20), st.integers(-20, 20)), min_size=1, max_size=30
)


@given(points=points)
def test_is_above_all_points_and_concave(points):
    x, y = np.array(sorted(points), dtype=float).T
    hull = upper_hull(x, y)
    assert y[hull[-1]] == y.max()
    chain_x, chain_y = x[hull], y[hull]
    slopes = np.diff(chain_y) / np.diff(chain_x)
    assert (slopes > 0).all()
    assert (np.diff(slopes) < 0).all()
    # For every slope from zero, the largest y - slope x is at a vertex.
    for slope in np.append(slopes, [0.0, 0.7, 5.0, 1e6]):
        largest = (y - slope * x).max()
        assert (chain_y - slope * chain_x).max() == pytest.approx(largest)
