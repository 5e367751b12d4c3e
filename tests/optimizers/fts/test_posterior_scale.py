"""The scale of line 6: bounds by brute force, coverage by simulation."""

import dataclasses
import math

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.fourier import FourierFeatures
from botorch_dp.optimizers import Federation
from botorch_dp.optimizers.fts.posterior_scale import (
    PosteriorScale,
    confidence_scale,
    feature_information_gain,
)
from tests.optimizers.problems import DEVICE, DOUBLE, seeded


def log_det(phi, noise_variance):
    square = phi @ phi.mT / noise_variance
    square = square + torch.eye(len(phi), **DOUBLE)
    return 0.5 * float(torch.linalg.slogdet(square)[1])


class TestFeatureInformationGain:
    @pytest.mark.parametrize("size", [1, 3, 6, 40])
    def test_no_design_exceeds_it(self, size):
        for trial in range(50):
            phi = torch.randn(size, 6, generator=seeded(trial), **DOUBLE)
            phi = 1.5 * torch.nn.functional.normalize(phi, dim=-1)
            bound = feature_information_gain(
                size, num_features=6, noise_variance=0.1, outputscale=1.5**2
            )
            assert log_det(phi, 0.1) <= bound + 1e-9

    @pytest.mark.parametrize("size", [2, 6, 12])
    def test_orthogonal_features_attain_it(self, size):
        phi = 2.0 * torch.eye(6, **DOUBLE).repeat(2, 1)[:size]
        bound = feature_information_gain(
            size, num_features=6, noise_variance=0.5, outputscale=4.0
        )
        assert bound == pytest.approx(log_det(phi, 0.5))

    def test_nothing_from_nothing(self):
        assert feature_information_gain(0, num_features=5, noise_variance=1.0) == 0.0


class TestConfidenceScale:
    def test_by_hand(self):
        """B = 2, gamma = 3, delta = 4/e: the logarithm is 1."""
        delta = 4 / math.e**2
        scale = confidence_scale(3.0, rkhs_bound=2.0, noise_std=0.5, delta=delta)
        assert scale == pytest.approx(2.0 + 0.5 * math.sqrt(2 * (3 + 1 + 2)))
        scale = confidence_scale(
            3.0, rkhs_bound=2.0, noise_std=0.5, delta=delta, regularization=0.25
        )
        assert scale == pytest.approx(2.0 + math.sqrt(2 * (3 + 1 + 2)))

    def test_coverage(self):
        """The published scale fails for small regularization, the other one holds.

        A function that is zero, B = 0, 30 observations with noise of variance 0.01,
        which is also the regularization; 200 repetitions, 100 points, delta = 0.1.
        """
        lengthscale = torch.tensor([0.3], **DOUBLE)
        features = FourierFeatures.draw(lengthscale, num_features=10, seed=0)
        X = torch.linspace(0, 1, 30, **DOUBLE).unsqueeze(-1)
        grid = features(torch.linspace(0, 1, 100, **DOUBLE).unsqueeze(-1))
        phi, noise = features(X), 0.01
        precision = phi.mT @ phi + noise * torch.eye(10, **DOUBLE)
        y = 0.1 * torch.randn(30, 200, generator=seeded(1), **DOUBLE)
        mean = grid @ torch.linalg.solve(precision, phi.mT @ y)
        deviation = (noise * grid @ torch.linalg.inv(precision) * grid).sum(-1).sqrt()
        worst = (mean.abs() / deviation.unsqueeze(-1)).amax(dim=0)
        gain = log_det(phi, noise)
        kwargs = {"rkhs_bound": 0.0, "noise_std": 0.1, "delta": 0.1}
        published = confidence_scale(gain, **kwargs)
        proven = confidence_scale(gain, regularization=noise, **kwargs)
        assert float((worst > published).double().mean()) > 0.5
        assert float((worst > proven).double().mean()) <= 0.1


class TestPosteriorScale:
    def test_line_6(self):
        """A draw keeps its direction from the posterior mean and scales its length."""
        base = Federation(
            num_agents=3,
            lower=(0.0,),
            upper=(1.0,),
            lengthscale=(0.2,),
            num_features=12,
            num_initial=4,
            local="shared",
        )
        drawn = {}
        for scale in (0.0, 1.0, 2.5):
            agents = dataclasses.replace(base, scale=scale).agents(
                seed=3, device=DEVICE
            )
            X = agents.ask(0)
            agents.tell(X, X.sum(dim=-1))
            sample = agents._models.sample
            agents._models.sample = lambda normals, s=scale, f=sample: drawn.setdefault(
                s, f(normals)
            )
            agents.ask(1)
            mean = agents._models.mean()
        assert torch.allclose(drawn[0.0], mean)
        assert torch.allclose(drawn[2.5] - mean, 2.5 * (drawn[1.0] - mean))

    def test_messages_are_not_scaled(self):
        base = Federation(
            num_agents=3, lower=(0.0,), upper=(1.0,), lengthscale=(0.2,), num_features=9
        )
        sent = []
        for scale in (1.0, "paper"):
            agents = dataclasses.replace(base, scale=scale).agents(
                seed=3, device=DEVICE
            )
            X = agents.ask(0)
            agents.tell(X, X.sum(dim=-1))
            sent.append(agents.messages(0))
        assert torch.equal(*sent)

    def test_schedules(self):
        """gamma_t by the formula, with 10 + t - 1 observations before round t."""
        features = FourierFeatures.draw(
            torch.tensor([0.2], **DOUBLE), num_features=50, seed=0, outputscale=2.0
        )
        gain = 6 * math.log1p(2.0 / 0.01)
        factor = math.sqrt(2 * (gain + 1 + math.log(40)))
        assert PosteriorScale("paper", 3.0)(12, features, 0.01) == pytest.approx(
            3 + 0.1 * factor
        )
        assert PosteriorScale("confidence", 3.0)(12, features, 0.01) == pytest.approx(
            3 + factor
        )

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"scale": "big"}, "scale must be one of"),
            ({"scale": -1.0}, "scale must be"),
            ({"rkhs_bound": -1.0}, "rkhs_bound must be"),
            ({"delta": 1.0}, "scale_delta must lie"),
        ],
    )
    def test_refuses(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            PosteriorScale(**kwargs)
