"""Batches of Bayesian linear models, against the posterior's closed form."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import FourierFeatures, LinearModels, linear_models
from tests.devices import DEVICE, seeded

NOISE = 1e-2


def uniform(generator, *shape):
    return torch.rand(*shape, generator=generator, dtype=torch.float64, device=DEVICE)


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device=DEVICE)


def make_features(num_features=12, dtype=torch.float64, **kwargs):
    lengthscale = torch.tensor([0.4, 0.6], dtype=dtype, device=DEVICE)
    return FourierFeatures.draw(
        lengthscale, num_features=num_features, seed=0, **kwargs
    )


def posterior(features, X, y, noise=NOISE):
    """The posterior of one agent by the textbook: (Phi^T Phi / s^2 + I)^-1."""
    phi = features(X)
    eye = torch.eye(phi.shape[-1], dtype=phi.dtype, device=phi.device)
    covariance = torch.linalg.inv(phi.mT @ phi / noise + eye)
    return covariance @ phi.mT @ y / noise, covariance


def affine_map(models, agent):
    """The sample of one agent as a function of its normals: offset and matrix."""
    size = models.num_normals
    zero = torch.zeros(models.num_agents, size, dtype=torch.float64, device=DEVICE)
    offset = models.sample(zero)[agent]
    columns = []
    for i in range(size):
        unit = zero.clone()
        unit[:, i] = 1.0
        columns.append(models.sample(unit)[agent] - offset)
    return offset, torch.stack(columns, dim=-1)


def assert_posterior(models, agent, X, y, noise=NOISE, atol=1e-9):
    mean, covariance = posterior(models.features, X, y, noise)
    torch.testing.assert_close(models.mean()[agent], mean, rtol=0, atol=atol)
    offset, matrix = affine_map(models, agent)
    torch.testing.assert_close(offset, mean, rtol=0, atol=atol)
    torch.testing.assert_close(matrix @ matrix.mT, covariance, rtol=0, atol=atol)


class History:
    """What each agent has seen, kept beside the models."""

    def __init__(self, models, generator):
        self.models, self.generator = models, generator
        self.seen = [([], []) for _ in range(models.num_agents)]

    def append(self, k, where=None):
        X = uniform(self.generator, self.models.num_agents, k, 2)
        y = normal(self.generator, self.models.num_agents, k)
        mask = None
        if where is not None:
            mask = torch.tensor(where, device=DEVICE)
            # What is not observed must not matter.
            X[~mask], y[~mask] = torch.nan, torch.nan
        self.models.append(X, y, mask)
        for agent, (points, values) in enumerate(self.seen):
            if where is None or where[agent]:
                points.append(X[agent])
                values.append(y[agent])

    def of(self, agent):
        points, values = self.seen[agent]
        empty = torch.empty(0, 2, dtype=torch.float64, device=DEVICE)
        return torch.cat([empty, *points]), torch.cat([empty[:, 0], *values])

    def check(self, **kwargs):
        for agent in range(self.models.num_agents):
            X, y = self.of(agent)
            assert int(self.models.counts[agent]) == len(y)
            assert_posterior(self.models, agent, X, y, **kwargs)


class TestPosterior:
    @pytest.mark.parametrize("normalize", [True, False])
    @pytest.mark.parametrize("sizes", [[1], [3, 1, 1], [11], [12], [5, 6, 1, 1], [40]])
    def test_exact(self, sizes, normalize, generator):
        """Below, at and beyond as many observations as features."""
        features = make_features(normalize=normalize, outputscale=1.7)
        history = History(LinearModels(features, 2, noise_variance=NOISE), generator)
        for size in sizes:
            history.append(size)
            history.models.sample(generator=generator)
        history.check()

    def test_missed_rounds(self, generator):
        features = make_features(10)
        models = LinearModels(features, 5, noise_variance=NOISE, chunk_size=2)
        history = History(models, generator)
        history.check()
        history.append(3, [True, False, True, True, False])
        history.check()
        history.append(2)
        history.append(2, [False, False, True, True, False])
        history.check()
        # Some agents have as many observations as features, and some do not.
        history.append(4, [True, False, True, False, False])
        assert models.counts.tolist() == [9, 2, 11, 7, 2]
        history.check()
        history.append(3, [True, True, False, False, False])
        history.check()
        history.append(8)
        assert models.counts.tolist() == [20, 13, 19, 15, 10]
        history.check()
        history.append(1, [False] * 5)
        history.check()

    def test_prior(self, generator):
        models = LinearModels(make_features(), 3, noise_variance=NOISE)
        normals = normal(generator, 3, models.num_normals)
        assert torch.equal(models.sample(normals), normals[:, :12])
        assert torch.equal(models.mean(), torch.zeros_like(normals[:, :12]))

    def test_moments_of_many_samples(self, generator):
        """One agent copied 20,000 times: 6 standard errors."""
        count = 20_000
        models = LinearModels(make_features(6), count, noise_variance=0.1)
        X = uniform(generator, 4, 2).expand(count, 4, 2)
        y = normal(generator, 4).expand(count, 4)
        models.append(X, y)
        samples = models.sample(generator=generator)
        mean, covariance = posterior(models.features, X[0], y[0], 0.1)
        error = covariance.diagonal().max().sqrt() / count**0.5
        assert (samples.mean(dim=0) - mean).abs().max() < 6 * error
        assert (samples.T.cov() - covariance).abs().max() < 10 * error

    @pytest.mark.parametrize("size", [5, 30])
    @pytest.mark.parametrize("noise", [1e-6, 1e-20])
    def test_repeated_points_and_little_noise(self, size, noise, generator):
        """Predictions at the point are the mean of its values, whatever the noise."""
        models = LinearModels(make_features(12), 1, noise_variance=noise)
        X = uniform(generator, 1, 1, 2).expand(1, size, 2)
        y = normal(generator, 1, size)
        models.append(X, y)
        phi = models.features(X)[:, 0]
        for weights in (models.mean(), models.sample(generator=generator)):
            predicted = float((phi * weights).sum())
            assert predicted == pytest.approx(float(y.mean()), abs=5e-3)

    def test_one_feature(self, generator):
        history = History(
            LinearModels(make_features(1), 2, noise_variance=NOISE), generator
        )
        history.check()
        history.append(1, [True, False])
        history.check()
        history.append(3)
        history.check()


class TestBatch:
    @pytest.mark.parametrize("chunk_size", [1, 2, 3, 64])
    def test_alone_or_together(self, chunk_size, generator):
        """Also when others have more observations than features, and it has not."""
        features = make_features(10)
        together = LinearModels(
            features, 7, noise_variance=NOISE, chunk_size=chunk_size
        )
        alone = [LinearModels(features, 1, noise_variance=NOISE) for _ in range(7)]
        for step in range(16):
            X, y = uniform(generator, 7, 1, 2), normal(generator, 7, 1)
            where = uniform(generator, 7) < 0.7
            together.append(X, y, where)
            for agent, model in enumerate(alone):
                if where[agent]:
                    model.append(X[agent : agent + 1], y[agent : agent + 1])
            normals = normal(generator, 7, 20)
            samples = torch.cat(
                [m.sample(normals[i : i + 1]) for i, m in enumerate(alone)]
            )
            torch.testing.assert_close(
                together.sample(normals), samples, rtol=0, atol=1e-10
            )
            if step == 12:
                assert together.counts.min() < 10 <= together.counts.max()
        means = torch.cat([model.mean() for model in alone])
        torch.testing.assert_close(together.mean(), means, rtol=0, atol=1e-10)

    def test_generator(self, generator):
        models = LinearModels(make_features(), 5, noise_variance=NOISE, chunk_size=2)
        models.append(uniform(generator, 5, 3, 2), normal(generator, 5, 3))
        again = seeded(3)
        sample = models.sample(generator=again)
        normals = normal(again.manual_seed(3), 5, models.num_normals)
        assert torch.equal(sample, models.sample(normals))

    @pytest.mark.parametrize("size", [3, 20])
    def test_broken_values_stay_with_their_agent(self, size, generator):
        X, y = uniform(generator, 3, size, 2), normal(generator, 3, size)
        normals = normal(generator, 3, 24)
        models = LinearModels(make_features(), 3, noise_variance=NOISE)
        models.append(X, y)
        expected = models.sample(normals)
        broken_X, broken_y = X.clone(), y.clone()
        broken_X[0, 0], broken_y[1, 1] = torch.nan, torch.inf
        models = LinearModels(make_features(), 3, noise_variance=NOISE)
        models.append(broken_X, broken_y)
        sample = models.sample(normals)
        assert not sample[0].isfinite().any()
        assert not sample[1].isfinite().all()
        torch.testing.assert_close(sample[2], expected[2], rtol=0, atol=1e-12)

    def test_single_precision(self, tkwargs, generator):
        """Inputs and samples are of any dtype, what is between is double."""
        features = make_features(dtype=tkwargs["dtype"])
        models = LinearModels(features, 2, noise_variance=1e-6)
        X, y = uniform(generator, 2, 8, 2), normal(generator, 2, 8)
        models.append(X.to(**tkwargs), y.to(**tkwargs))
        mean = models.mean()
        assert mean.dtype == tkwargs["dtype"]
        double = features.to(dtype=torch.float64)
        expected, _ = posterior(
            double, X[0].to(**tkwargs).double(), y[0].to(**tkwargs).double(), 1e-6
        )
        torch.testing.assert_close(mean[0].double(), expected, rtol=1e-4, atol=1e-4)
        assert models.sample(generator=generator).dtype == tkwargs["dtype"]

    def test_inputs_are_copied(self, generator):
        models = LinearModels(make_features(), 2, noise_variance=NOISE)
        X, y = uniform(generator, 2, 3, 2), normal(generator, 2, 3)
        models.append(X, y)
        before = models.mean()
        X.zero_(), y.zero_()
        models.append(X[:, :0], y[:, :0])
        assert torch.equal(models.mean(), before)


class TestState:
    @pytest.mark.parametrize("counts", [(2, 3), (8, 9, 1), (14, 2)])
    def test_continues(self, counts, generator):
        features = make_features(10)
        models = LinearModels(features, 5, noise_variance=NOISE, chunk_size=2)
        history = History(models, generator)
        for count in counts:
            history.append(count)
        history.append(2, [True, False, False, True, True])
        models.sample(generator=generator)
        state = models.state_dict()
        other = LinearModels(features, 5, noise_variance=NOISE, chunk_size=2)
        other.load_state_dict(state)
        history.append(3)  # does not reach into the state
        again = LinearModels(features, 5, noise_variance=NOISE, chunk_size=2)
        again.load_state_dict(state)
        X = torch.stack([history.of(agent)[0][-3:] for agent in range(5)])
        y = torch.stack([history.of(agent)[1][-3:] for agent in range(5)])
        again.append(X, y)
        normals = normal(generator, 5, 20)
        torch.testing.assert_close(
            again.sample(normals), models.sample(normals), rtol=0, atol=1e-10
        )
        assert other.counts.tolist() == (models.counts - 3).tolist()

    @pytest.mark.parametrize(
        "other",
        [
            lambda: LinearModels(make_features(), 4, noise_variance=NOISE),
            lambda: LinearModels(
                make_features(), 5, noise_variance=NOISE, chunk_size=2
            ),
            lambda: LinearModels(make_features(11), 5, noise_variance=NOISE),
        ],
    )
    def test_rejects_another(self, other):
        models = LinearModels(make_features(), 5, noise_variance=NOISE)
        with pytest.raises(
            InvalidArgumentError, match="state_dict must come from models"
        ):
            models.load_state_dict(other().state_dict())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, X, y: m.append(X[0], y), "X must be .* shape 3 x k x 2"),
        (lambda m, X, y: m.append([1.0], y), "X must be .* got a list"),
        (lambda m, X, y: m.append(X[:2], y), "X must be .* shape 3 x k x 2"),
        (lambda m, X, y: m.append(X.float(), y), "X must be .* got torch.float32"),
        (lambda m, X, y: m.append(X, y[:, :1]), "y must be .* shape 3 x 4 on"),
        (lambda m, X, y: m.append(X, y, y[:, 0]), "where must be a torch.bool"),
        (lambda m, X, y: m.sample(), "either normals or a generator, got neither"),
        (lambda m, X, y: m.sample(y), "normals must be .* shape 3 x 24"),
        (
            lambda m, X, y: m.sample(y, generator=seeded()),
            "got both",
        ),
        (
            lambda m, X, y: LinearModels(m.features, 0, noise_variance=1.0),
            "num_agents",
        ),
        (
            lambda m, X, y: LinearModels(m.features, 1, noise_variance=0.0),
            "noise_variance",
        ),
        (
            lambda m, X, y: LinearModels(
                m.features, 1, noise_variance=1.0, chunk_size=0
            ),
            "chunk_size",
        ),
        (
            lambda m, X, y: LinearModels(X, 1, noise_variance=1.0),
            "features must be FourierFeatures, got torch.float64 of",
        ),
    ],
)
def test_rejects(call, message, generator):
    models = LinearModels(make_features(), 3, noise_variance=NOISE)
    X, y = uniform(generator, 3, 4, 2), normal(generator, 3, 4)
    with pytest.raises(InvalidArgumentError, match=message):
        call(models, X, y)


class TestKeptFeatures:
    """Features that are kept, computed again, or not reused: the same samples."""

    @pytest.mark.parametrize("counts", [(3, 1, 1), (7, 2, 1, 4)])
    def test_agree(self, counts, generator, monkeypatch):
        present = torch.tensor([True, False, True, True, True], device=DEVICE)
        made = {}
        for name, most in (("kept", 2**25), ("computed", 0), ("mixed", 5 * 12 * 8)):
            monkeypatch.setattr(linear_models, "_KEPT", most)
            models = LinearModels(make_features(), 5, noise_variance=NOISE)
            again = seeded(5)
            samples = []
            for i, count in enumerate(counts):
                X, y = uniform(again, 5, count, 2), normal(again, 5, count)
                models.append(X, y, where=None if i % 2 == 0 else present)
                samples.append(models.sample(normal(again, 5, 24)))
            made[name] = torch.stack(samples)
        for name in ("computed", "mixed"):
            torch.testing.assert_close(made[name], made["kept"], rtol=0, atol=1e-9)

    def test_models_that_sample_once(self, generator):
        X, y = uniform(generator, 5, 6, 2), normal(generator, 5, 6)
        normals = normal(generator, 5, 24)
        found = []
        for reuse in (True, False):
            models = LinearModels(make_features(), 5, noise_variance=NOISE, reuse=reuse)
            models.append(X, y)
            found.append(models.sample(normals))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)
