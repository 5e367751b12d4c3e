"""Short notations for dimensions."""

import numpy as np
import pytest
from scipy import stats

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Categorical, Integer, Real
from botorch_dp.integrations.sklearn.notations import dimension_of


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ((1e-4, 1e4, "log"), Real(1e-4, 1e4, log=True)),
        ((0.1, 0.9), Real(0.1, 0.9)),
        ((0, 1.0), Real(0, 1.0)),
        ((1, 10), Integer(1, 10)),
        ((np.int64(1), 1000, "log"), Integer(1, 1000, log=True)),
        ([1, 10], Categorical([1, 10])),
        (np.array(["a", "b"]), Categorical(["a", "b"])),
        (Real(0, 1), Real(0, 1)),
    ],
)
def test_means(given, meant):
    found = dimension_of("x", given)
    assert type(found) is type(meant)
    assert found == meant


@pytest.mark.parametrize(
    "dist",
    [
        stats.uniform(2.0, 3.0),
        stats.uniform(loc=-1, scale=2),
        stats.loguniform(1e-3, 1e2),
        stats.reciprocal(0.5, 2.0),
        stats.loguniform(1e-3, 1e2, scale=10),
        stats.randint(1, 5),
        stats.randint(0, 3, loc=7),
    ],
)
def test_distributions_cover_what_they_draw(dist):
    found = dimension_of("x", dist)
    draws = dist.rvs(4000, random_state=0)
    assert found.low <= draws.min()
    assert draws.max() <= found.high
    if isinstance(found, Integer):
        assert {*draws} == {*range(found.low, found.high + 1)}
    else:  # the middle of the range in search coordinates is the median
        ends = np.array([found.low, found.high])
        middle = np.sqrt(ends.prod()) if found.log else ends.mean()
        assert dist.cdf(middle) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ((10, 1), r"space\['x'\]: low must be below high.*Integer\(low=10, high=1"),
        ((1.0, 0.1), r"low must be below high"),
        ((0.0, 1.0, "log"), r"low must be above 0 with log=True"),
        ((0, 1), r"\(0, 1\) is ambiguous: write Real\(0, 1\) for .* \[0, 1\] for"),
        (("l1", "l2"), r"a tuple must be a range.*as a list, \['l1', 'l2'\]"),
        ((0.1, 0.2, 0.3), r"a tuple must be a range.*list, \[0\.1, 0\.2, 0\.3\]"),
        ((1, 2, "exp"), "a tuple must be a range"),
        ((True, False), "a tuple must be a range"),
        ((1.0,), "a tuple must be a range"),
        (stats.norm(0, 1), r"must be scipy.stats.uniform.*got 'norm'.*Real\(low, high"),
        (stats.loguniform(1, 2, loc=3), "loguniform"),
        (stats.uniform(0, 0), "low must be below high|must be scipy"),
        (stats.uniform, "must be Real"),
        ("rbf", r"space\['x'\] must be Real"),
        (None, r"space\['x'\] must be Real"),
    ],
)
def test_refused(given, match):
    with pytest.raises(InvalidArgumentError, match=match):
        dimension_of("x", given)
