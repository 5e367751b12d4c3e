"""What random runs select, against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.selection.private_selection import PrivateSelection
from botorch_dp.optimizers.selection.random_runs import check_jobs
from botorch_dp.privacy import (
    AtLeast,
    AtMost,
    Binomial,
    GaussianEvent,
    Poisson,
    TruncatedNegativeBinomial,
)
from tests.optimizers.selection.cases import XS, outcomes


def select(count, candidates=XS, **kwargs):
    return PrivateSelection(candidates, base=GaussianEvent(2.0), count=count, **kwargs)


class TestDistribution:
    """Against the closed form: a level of scores wins with phi(F) - phi(F-)."""

    @pytest.mark.parametrize(
        "count",
        [
            Poisson(1.5),
            TruncatedNegativeBinomial(3, 1.0),
            Binomial(4, 0.4),
            AtLeast(TruncatedNegativeBinomial(3, 1.0), 2),
            AtMost(Poisson(3), 2),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("pad_to", [None, 3])
    def test_of_the_selected_candidate(self, count, pad_to, generator):
        scores = {"a": 0.0, "b": 2.0, "c": 1.0, "d": 2.0, "e": math.nan}
        selection = select(
            count, list(scores), pad_to=pad_to, default="none", generator=generator
        )
        found = [
            "none" if one is None else one.x
            for one in outcomes(selection, scores.get, 2000)
        ]
        used = count if pad_to is None else AtMost(count, pad_to)
        probabilities = used.probabilities(200)

        def phi(z):
            return float((probabilities * z ** np.arange(201)).sum())

        levels = [phi(k / 5) for k in (0, 1, 2, 3, 5)]
        none, e, a, c, b_or_d = np.diff([0.0, *levels])
        expected = {
            "none": none, "e": e, "a": a, "c": c, "b": b_or_d / 2, "d": b_or_d / 2
        }  # fmt: skip
        possible = [x for x, share in expected.items() if share > 0]
        assert set(found) <= set(possible)
        # 2000 draws reject, with power 0.99, a level that is off by 5 points.
        test = stats.chisquare(
            [found.count(x) for x in possible],
            [2000 * expected[x] for x in possible],
        )
        assert test.pvalue > 1e-3

    def test_seeds_reproduce_and_jobs_do_not_matter(self):
        def scores(x):
            return x + float(torch.rand((), dtype=torch.float64, device="cpu")) / 10

        found = []
        for seed in (1, 1, 2):
            generator = torch.Generator("cpu").manual_seed(seed)
            selection = select(Poisson(5), generator=generator)
            found.append(selection.run(scores).score)
        assert found[0] == found[1] != found[2]

    def test_an_error_is_selected_like_a_highest_score(self, generator):
        # With m = 4 candidates, one of which fails: 1 - phi(3/4) for the failure.
        def fails(x):
            if x == 0.4:
                raise KeyError
            return x

        selection = select(Poisson(2), generator=generator)
        found = outcomes(selection, fails, 2000)
        failed = sum(one is not None and one.error is not None for one in found)
        expected = 1 - math.exp(-2 / 4)
        # Stopping at the first error must not change the probability.
        assert stats.binomtest(failed, 2000, expected).pvalue > 1e-3


@pytest.mark.parametrize("n_jobs", [0, True, 1.5, None])
def test_check_jobs(n_jobs):
    assert check_jobs(1) == 1
    with pytest.raises(InvalidArgumentError, match="n_jobs must be"):
        check_jobs(n_jobs)
