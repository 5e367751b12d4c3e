"""Branch and bound: its cover, its sets, and its regret on draws of a process."""

import math
import warnings

import pytest
import torch

from botorch_dp import ApproxDP, PrivateBO
from botorch_dp.exceptions import InvalidArgumentError, UselessReleaseWarning
from botorch_dp.optimizers.release.kusner.branch_and_bound import (
    DerivedValueSensitivity,
    RelevantSet,
    cover,
    exact_posterior,
    observe_exactly,
)
from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
from tests.optimizers.problems import DOUBLE, seeded
from tests.optimizers.release.kusner.bounds import rbf

T, N = 12, 80


def grid(count=N):
    return torch.linspace(0, 1, count, **DOUBLE).unsqueeze(-1)


def covariance(X, scale):
    return torch.exp(-(torch.cdist(X, X) ** 2) / (2 * scale**2))


def left(K, indices):
    """Variances given exact values, from scratch."""
    inverse = torch.linalg.pinv(K[indices][:, indices], hermitian=True)
    return K.diagonal() - (K[:, indices] @ inverse * K[:, indices]).sum(dim=-1)


@pytest.mark.parametrize("scale", [0.05, 0.2])
def test_the_cover_is_greedy(scale):
    X = grid()
    K, found = covariance(X, scale), cover(rbf(scale), X, num_points=6)
    for i in range(1, 6):
        variance = left(K, list(found.indices[:i]))
        index = found.indices[i]
        assert float(variance[index]) == pytest.approx(float(variance.max()), abs=1e-6)
    expected = max(float(left(K, list(found.indices)).max()), 1e-8)
    assert found.deviation == pytest.approx(math.sqrt(expected), rel=1e-3)


def test_a_cover_of_everything_stops_at_the_floor():
    found = cover(rbf(1.0), grid(20), num_points=20)
    assert found.deviation == pytest.approx(1e-4)


class TestRelevantSet:
    def test_only_drops_what_cannot_be_the_best(self):
        """In every one of 15 draws inside the bounds the best stays."""
        X, kernel, generator = grid(), rbf(0.1), seeded(0)
        root = torch.linalg.cholesky(covariance(X, 0.1) + 1e-8 * torch.eye(N, **DOUBLE))
        dropped = 0
        for _ in range(15):
            f = root @ torch.randn(N, generator=generator, **DOUBLE)
            posterior = exact_posterior(kernel, X, T)
            relevant = RelevantSet(N, "cpu")
            for _ in range(T):
                relevant.shrink(posterior, 16.0)
                index = relevant.most_uncertain(posterior)
                assert relevant.mask[index]
                observe_exactly(posterior, index, float(f[index]))
            assert relevant.mask[f.argmax()]
            dropped += int((~relevant.mask).sum())
            best = relevant.most_promising(posterior, 16.0)
            assert f.max() - f[best] < 0.5
        assert dropped > 15 * N / 4

    def test_an_empty_set_means_no_set(self):
        posterior = exact_posterior(rbf(0.2), grid(), 2)
        relevant = RelevantSet(N, "cpu")
        relevant.mask[:] = False
        observe_exactly(posterior, 0, 5.0)
        bound = posterior.mean + 2 * posterior.variance.sqrt()
        assert relevant.most_promising(posterior, 4.0) == int(bound.argmax())

    def test_a_known_value_teaches_nothing(self):
        posterior = exact_posterior(rbf(0.2), grid(), 2)
        for _ in range(2):
            observe_exactly(posterior, 7, 1.0)
        assert posterior.num_observations == 1


def test_the_regret_by_hand():
    setting = KusnerSetting(
        num_steps=T, num_candidates=N, delta=0.1, correlation=0.9, prior_variance=4.0
    )
    value = DerivedValueSensitivity(setting, deviation=0.25)
    beta = 2 * math.log(N * T**2 * math.pi**2 / 0.2)
    assert value.regret == pytest.approx(2 * math.sqrt(beta) * 0.25)
    c = 4 * math.sqrt(0.1 * math.log(2 * N / 0.1))
    assert value.sensitivity == pytest.approx(value.regret + c)
    assert 0.01 < sum(value.failure_probabilities.values()) <= 0.1
    with pytest.raises(InvalidArgumentError, match="num_steps"):
        DerivedValueSensitivity(
            KusnerSetting(num_steps=1, num_candidates=N, delta=0.1, correlation=0.9),
            deviation=0.1,
        )
    with pytest.raises(InvalidArgumentError, match="deviation"):
        DerivedValueSensitivity(setting, deviation=-1.0)


def make(**kwargs):
    settings = {
        "candidates": grid(),
        "num_records": 10,
        "num_steps": T,
        "guarantee": ApproxDP(1.0, 0.1),
        "loss_range": (-20.0, 20.0),
        "prior_std": 1.0,
        "kernel": rbf(0.1),
        "release": "kusner-noise-free",
        "correlation": 0.99,
        "output": "value",
        "generator": seeded(),
        **kwargs,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UselessReleaseWarning)
        return PrivateBO(**settings)


def search(opt, f):
    """The candidates that a run on a given function evaluates, in order."""
    asked = []
    while not opt.done:
        X = opt.ask()
        asked.append(int((X * (N - 1)).round()))
        opt.tell(-f[asked[-1]].expand(10, 1))
    return asked


class TestRuns:
    @pytest.mark.parametrize(("size", "waves"), [(3, 5), (6, 7)])
    def test_the_steps(self, size, waves):
        """Cover, then the relevant set, then the largest upper bound.

        Without the cover the second function changes the fourth point already, and the
        most uncertain point is not the last one of the first function.
        """
        x = grid().squeeze(-1)
        f = size * (torch.sin(waves * x) + x)
        opt = make()
        asked = search(opt, f)
        covered = cover(rbf(0.1), grid(), num_points=T // 2)
        assert tuple(asked[: T // 2]) == covered.indices
        posterior = exact_posterior(rbf(0.1), grid(), T)
        for index in asked[:-1]:
            observe_exactly(posterior, index, float(f[index]))
        beta = opt.details["value"]["beta"]
        bound = posterior.mean + (beta * posterior.variance.clamp(min=1e-8)).sqrt()
        assert asked[-1] == int(bound.argmax())
        # What comes after the cover is near the maximum, unlike the cover.
        assert min(f[asked[T // 2 :]]) > min(f[asked[: T // 2]])
        assert f.max() - f[asked].max() < 0.1
        value = opt.details["value"]
        assert value["deviation"] == covered.deviation
        assert opt.details["search"] == "branch-and-bound"
        assert value["regret"] == pytest.approx(
            2 * math.sqrt(value["beta"]) * covered.deviation
        )

    def test_the_regret_holds_on_draws(self):
        """On all of 12 draws."""
        generator, X = seeded(1), grid()
        root = torch.linalg.cholesky(covariance(X, 0.1) + 1e-8 * torch.eye(N, **DOUBLE))
        regrets = []
        for _ in range(12):
            f = root @ torch.randn(N, generator=generator, **DOUBLE)
            opt = make()
            regrets.append(float(f.max() - f[search(opt, f)].max()))
        bound = opt.details["value"]["regret"]
        assert max(regrets) <= bound
        assert sum(regrets) / 12 < bound / 10  # the later steps do more than is proven

    def test_asserted_constants_keep_ucb_unless_asked(self):
        regret = {"regret_scale": 4.0, "regret_rate": 0.1}
        assert "search" not in make(**regret).details
        opt = make(**regret, search="branch-and-bound")
        assert opt.details["search"] == "branch-and-bound"
        assert "deviation" not in opt.details["value"]

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"search": "ucb"}, "must both be given"),
            ({"regret_scale": 1.0}, "must both be given"),
            ({"regret_rate": 1.0, "search": "branch-and-bound"}, "must both be given"),
            ({"search": "grid"}, "search must be one of"),
            ({"num_steps": 1}, "num_steps"),
        ],
    )
    def test_misuse(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            make(**kwargs)
